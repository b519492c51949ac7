"""The command line: `fedpers run | list | report | export | data | keys | deal`."""

import argparse
import errno
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedpers import __version__
from fedpers.core.errors import ConfigError, FedpersError
from fedpers.deploy import commands as deployment

# Flower and Ray report usage, look for updates and install packages unless they are told not to.
for _name, _value in {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}.items():
    os.environ.setdefault(_name, _value)

USER_MISTAKE, INTERRUPTED = 2, 130
DISK = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ENAMETOOLONG,
)  # OSErrors that a user can mend


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status: 0, 2 for a user's mistake, 130 after Ctrl-C."""
    try:
        return _command(list(sys.argv[1:] if argv is None else argv))
    except FedpersError as error:
        return _complain(error)
    except KeyboardInterrupt as stop:
        print(f"\n{stop or 'interrupted'}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # fedpers list | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in DISK:
            raise
        where = f"{error.filename}: " if error.filename else ""
        return _complain(
            FedpersError(f"{where}{error.strerror}; choose another folder with out=, or make room there")
        )


def _command(argv: list[str]) -> int:
    if argv[:1] == ["run"]:  # what follows is Hydra's, not argparse's
        from fedpers.app.launch import run

        return run(argv[1:])
    if argv[:1] == ["bench"]:
        from fedpers.bench.main import main as bench

        return bench(argv[1:])
    args = parser().parse_args(argv)
    action: Callable[[argparse.Namespace], int] = args.action
    return action(args)


def _complain(error: FedpersError) -> int:
    lines = str(error).splitlines() or [type(error).__name__]
    if isinstance(error, ConfigError) and len(lines) > 1:
        text = f"{len(lines)} mistakes\n" + "\n".join(f"  - {line}" for line in lines)
    else:
        text = "\n".join(lines)
    print(f"fedpers: error: {text}", file=sys.stderr)
    return USER_MISTAKE


def parser() -> argparse.ArgumentParser:
    """The outer command's arguments."""
    top = argparse.ArgumentParser("fedpers", description="Personalised federated learning.")
    top.add_argument("--version", action="version", version=f"fedpers {__version__}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    commands.add_parser(
        "run",
        add_help=False,
        help="one run, or a sweep with -m; takes Hydra overrides such as method=fedavg rounds=50",
    )
    commands.add_parser(
        "bench", add_help=False, help="speed and memory beside Flower's own simulation and other peers"
    )
    _add_list(commands)
    _add_report(commands)
    _add_export(commands)
    _add_data(commands)
    deployment.add(commands)
    return top


def _add_list(commands: Any) -> None:
    command = commands.add_parser("list", help="what there is to choose from")
    command.set_defaults(action=_list)


def _add_report(commands: Any) -> None:
    command = commands.add_parser("report", help="mean and spread over seeds of finished runs")
    command.add_argument("runs", nargs="+", type=Path, help="run directories, or a sweep's")
    command.add_argument(
        "--out",
        type=Path,
        help="folder of report.md and report.html; default: the sweep's directory, else here",
    )
    command.set_defaults(action=_report)


def _add_export(commands: Any) -> None:
    command = commands.add_parser("export", help="a whole model of a run, for others to use")
    command.add_argument("run", type=Path, help="a run directory")
    command.add_argument(
        "--model", help="its name, such as global or center_0; may be left out if the method has one"
    )
    command.add_argument(
        "--out", type=Path, help="folder of NAME.safetensors and NAME.json; default: RUN/export"
    )
    command.set_defaults(action=_export)


def _add_data(commands: Any) -> None:
    data = commands.add_parser("data", help="download data sets")
    actions = data.add_subparsers(required=True, metavar="ACTION")
    fetch = actions.add_parser("fetch", help="download a data set")
    fetch.add_argument("name")
    fetch.add_argument("--root", type=Path, help="where to; default: $FEDPERS_DATA, else ~/.cache/fedpers")
    fetch.set_defaults(action=_fetch)


def _list(args: argparse.Namespace) -> int:
    from fedpers.app.listing import show

    show()
    return 0


def _report(args: argparse.Namespace) -> int:
    from fedpers.results.report.tables import report

    report(args.runs, args.out)
    return 0


def _export(args: argparse.Namespace) -> int:
    from fedpers.app.export import export

    print(export(args.run, args.model, args.out))
    return 0


def _fetch(args: argparse.Namespace) -> int:
    from fedpers.datasets.fetch import fetch
    from fedpers.results.progress import download_bar

    root = args.root or Path(os.environ.get("FEDPERS_DATA") or Path.home() / ".cache" / "fedpers")
    with download_bar(args.name) as progress:
        files = fetch(args.name, root, progress)
    print(f"{args.name} is in {root}" if files else f"{args.name} needs no files")
    return 0
