"""The commands of a deployment: keys, and dealing data to devices."""

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

from fedpers.core.errors import ConfigError


def add(commands: Any) -> None:
    """Add `keys` and `deal` to the command line."""
    actions = commands.add_parser("keys", help="certificates and keys of a deployment").add_subparsers(
        required=True, metavar="ACTION"
    )
    out = {"type": Path, "default": Path("keys"), "help": "folder; default: keys"}
    init = actions.add_parser("init", help="on the server: an authority and the server's certificate")
    init.add_argument("--host", action="append", default=[], help="name or address of the server; repeatable")
    init.add_argument("--days", type=int, default=365, help="validity of the server's certificate")
    init.add_argument("--out", **out)
    init.set_defaults(action=_init)
    client = actions.add_parser("client", help="on a device: its key pair")
    client.add_argument("name")
    client.add_argument("--out", **out)
    client.set_defaults(action=_client)
    admit = actions.add_parser("admit", help="on the server: let devices in, each under its key's name")
    admit.add_argument("public", nargs="+", type=Path, help="public keys, NAME.pub")
    admit.add_argument("--address", help="the SuperLink; default: 127.0.0.1:8000")
    admit.add_argument("--ca", help="certificate of the authority; left out: no TLS, on loopback only")
    admit.set_defaults(action=_admit)
    deal = commands.add_parser("deal", help="a data set as one file a client, for demonstrations")
    deal.add_argument("out", type=Path)
    deal.add_argument("overrides", nargs="*", help="such as data=digits data.num_clients=3 seed=0")
    deal.set_defaults(action=_deal)


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
        link = Link(Path(home), args.address, args.ca)
        for name, path in zip(names, args.public, strict=True):
            copy = Path(home) / "key.pub"
            shutil.copy(path, copy)
            link.flwr("supernode", "register", str(copy), "fedpers", "--name", name)
            print(f"{name} is admitted")


def _deal(args: argparse.Namespace) -> None:
    from fedpers.config.compose import load
    from fedpers.deploy.deal import deal

    cfg = load(args.overrides)
    for path in deal(cfg.data, cfg.seed, args.out):
        print(path)
