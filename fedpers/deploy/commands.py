"""The commands of a deployment: keys, services, kernels, SuperLink, and dealing data to devices."""

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpers.core.errors import ConfigError, FedpersError
from fedpers.deploy.members import Members


def add(commands: Any) -> None:
    """Add `keys`, `services`, `superlink`, `kernels` and `deal` to the command line."""
    superlink = "Flower's SuperLink, with room for large models; takes what flower-superlink takes"
    commands.add_parser("superlink", add_help=False, help=superlink)
    _add_keys(commands)
    _add_services(commands)
    kernels = commands.add_parser("kernels", help="compile the kernels now, not in the first run")
    portable = "for every processor of this kind, into the installed package: for images"
    kernels.add_argument("--portable", action="store_true", help=portable)
    kernels.set_defaults(action=_kernels)
    deal = commands.add_parser("deal", help="a data set as one file a client, for demonstrations")
    deal.add_argument("out", type=Path)
    deal.add_argument("overrides", nargs="*", help="such as data=digits data.num_clients=3 seed=0")
    deal.set_defaults(action=_deal)


def _add_keys(commands: Any) -> None:
    actions = commands.add_parser("keys", help="certificates and keys of a deployment").add_subparsers(
        required=True, metavar="ACTION"
    )
    out = {"type": Path, "default": Path("keys"), "help": "folder; default: keys"}
    init = actions.add_parser("init", help="on the server: an authority and the server's certificate")
    _add_certificate(init, out, "name or address of the server; repeatable", _init)
    client = actions.add_parser("client", help="on a device: its key pair")
    client.add_argument("name")
    client.add_argument("--out", **out)
    client.set_defaults(action=_client)
    admit = actions.add_parser("admit", help="on the server: let devices in, each under its key's name")
    admit.add_argument("public", nargs="+", type=Path, help="public keys, NAME.pub")
    _add_link(admit)
    admit.set_defaults(action=_admit)
    _add_later(actions, out)


def _add_certificate(
    command: argparse.ArgumentParser, out: Mapping[str, Any], hosts: str, action: Any
) -> None:
    command.add_argument("--host", action="append", default=[], help=hosts)
    command.add_argument("--days", type=int, default=365, help="validity of the server's certificate")
    command.add_argument("--out", **out)
    command.set_defaults(action=action)


def _add_link(command: argparse.ArgumentParser) -> None:
    command.add_argument("--address", help="the SuperLink; default: 127.0.0.1:8000")
    command.add_argument("--ca", help="certificate of the authority; left out: no TLS, on loopback only")


def _add_later(actions: Any, out: Mapping[str, Any]) -> None:
    """What is done to keys once they are there."""
    renew = actions.add_parser("renew", help="on the server: a new certificate under the same authority")
    _add_certificate(renew, out, "default: those of the old certificate", _renew)
    listing = actions.add_parser("list", help="on the server: who is admitted, by name and Flower's id")
    revoke = actions.add_parser("revoke", help="on the server: let a device in no longer")
    revoke.add_argument("name")
    for command, action in ((listing, _list), (revoke, _revoke)):
        _add_link(command)
        command.add_argument("--out", **out)
        command.set_defaults(action=action)
    look = actions.add_parser("check", help="on a device: whether the server's certificate is accepted")
    look.add_argument("--address", required=True, help="the proxy, HOST:PORT")
    look.add_argument("--ca", required=True, help="ca.crt of the server")
    look.set_defaults(action=_check)


def _add_services(commands: Any) -> None:
    actions = commands.add_parser("services", help="files that have systemd run a server or a device")
    actions = actions.add_subparsers(required=True, metavar="WHERE")
    server = actions.add_parser("server", help="units of SuperLink and proxy, and the proxy's nginx.conf")
    server.set_defaults(action=_services_of_server)
    device = actions.add_parser("device", help="the unit of a SuperNode")
    device.add_argument("name", help="of the client, as its key is called")
    device.add_argument("--server", required=True, help="the proxy, HOST:PORT")
    device.add_argument("--data", required=True, help="folder or file of the client's data")
    device.add_argument("--target", help="the column of y, for tables")
    device.add_argument("--policy", help="a file that says what runs may do here")
    device.set_defaults(action=_services_of_device)
    for command in (server, device):
        command.add_argument("--keys", type=Path, default=Path("keys"), help="folder; default: keys")
        command.add_argument("--state", type=Path, default=Path("/var/lib/fedpers"), help="what it may write")
        command.add_argument("--user", default="fedpers", help="whom it runs as; default: fedpers")
        command.add_argument("--out", type=Path, default=Path("services"), help="folder; default: services")


def _init(args: argparse.Namespace) -> None:
    from fedpers.deploy.keys import init

    for path in init(args.out, args.host, args.days):
        print(path)
    print(f"devices need {args.out / 'ca.crt'}; the two .key files never leave this machine")


def _client(args: argparse.Namespace) -> None:
    from fedpers.deploy.keys import client

    private, public = client(args.out, args.name)
    print(
        f"{private}  (never leaves this device)\n{public}  (for the server: fedpers keys admit {public.name})"
    )


def _admit(args: argparse.Namespace) -> None:
    from fedpers.deploy.keys import read_public
    from fedpers.deploy.submit import Link

    clients = [read_public(path) for path in args.public]
    names = [name for name, _ in clients]
    if len(set(names)) < len(names):
        raise ConfigError(f"{', '.join(sorted(names))}: two keys have one name")
    with tempfile.TemporaryDirectory(prefix="fedpers-link-") as home:
        members = Members(Link(Path(home), args.address, args.ca), args.public[0].parent)
        failed = [
            text for path, name in zip(args.public, names, strict=True) if (text := members.admit(name, path))
        ]
    if failed:
        raise FedpersError("\n".join(failed))


def _renew(args: argparse.Namespace) -> None:
    from fedpers.deploy.keys import renew

    made = renew(args.out, args.host, args.days)
    print(f"{made}  (start the SuperLink and the proxy anew; devices stay as they are)")


def _list(args: argparse.Namespace) -> None:
    from fedpers.deploy.submit import Link

    with tempfile.TemporaryDirectory(prefix="fedpers-link-") as home:
        for line in Members(Link(Path(home), args.address, args.ca), args.out).lines():
            print(line)


def _check(args: argparse.Namespace) -> None:
    from fedpers.deploy.tls import problem

    if (found := problem(args.address, args.ca)) is not None:
        raise FedpersError(found)
    print(f"{args.address}: its certificate is accepted")


def _revoke(args: argparse.Namespace) -> None:
    from fedpers.deploy.submit import Link

    with tempfile.TemporaryDirectory(prefix="fedpers-link-") as home:
        Members(Link(Path(home), args.address, args.ca), args.out).revoke(args.name)
    print(f"{args.name} is admitted no longer; a SuperNode of its key is refused with [2004]")


def _services_of_server(args: argparse.Namespace) -> None:
    from fedpers.deploy.services import server

    _say_services(server(args.out, args.keys, args.state, args.user), args)


def _services_of_device(args: argparse.Namespace) -> None:
    from fedpers.deploy.services import device

    node = {n: value for n in ("data", "target", "policy") if (value := getattr(args, n)) is not None}
    found = device(args.out, args.keys, args.state, args.user, args.name, args.server, node)
    _say_services(found, args)


def _say_services(paths: list[Path], args: argparse.Namespace) -> None:
    for path in paths:
        print(path)
    units = " ".join(path.name for path in paths if path.suffix == ".service")
    print(f"install -d -o {args.user} -m 0700 {args.state}")
    print(f"cp {args.out}/*.service /etc/systemd/system/ && systemctl enable --now {units}")


def _kernels(args: argparse.Namespace) -> None:
    from fedpers.learning.kernels.library import prepare, prepare_portable

    if args.portable:
        for path in prepare_portable():
            print(path)
    elif not prepare():
        raise FedpersError(
            "the kernels cannot be compiled here; torch is used instead: is there a C compiler?"
        )


def _deal(args: argparse.Namespace) -> None:
    from fedpers.config.compose import load
    from fedpers.deploy.deal import deal

    cfg = load(args.overrides)
    for path in deal(cfg.data, cfg.seed, args.out):
        print(path)
