"""The command line: `fedpers run | bench | list | explain | report | export | predict | new-method`..."""

import argparse
import errno
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedpers import __version__
from fedpers.core.errors import ConfigError, FedpersError
from fedpers.core.host import owned
from fedpers.deploy import commands as deployment

USER_MISTAKE, INTERRUPTED = 2, 130  # exit statuses
DISK = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOTDIR,
        errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG)  # fmt: skip  # OSErrors that a user can mend


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status: 0, 2 for a user's mistake, 130 after Ctrl-C.

    Args:
        argv: the command's words; None: those of this process, which then is the command's own.
    """
    if argv is None:
        owned()
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
    if argv[:1] == ["run"] and {"-h", "--help"} & set(argv):
        from fedpers.app.help import show

        show([word for word in argv[1:] if not word.startswith("-")])
        return 0
    if argv[:1] == ["run"]:  # what follows is Hydra's, not argparse's
        from fedpers.app.launch import run_command

        return run_command(argv[1:])
    if argv[:1] == ["bench"]:
        from fedpers.bench.main import main as bench

        return bench(argv[1:])
    if argv[:1] == ["superlink"]:  # what follows is Flower's
        from fedpers.deploy.superlink import main as superlink

        superlink(argv[1:])
        return 0
    args = parser().parse_args(argv)
    args.action(args)
    return 0


def _complain(error: FedpersError) -> int:
    lines = str(error).splitlines() or [type(error).__name__]
    text = "\n".join(lines)
    if isinstance(error, ConfigError) and len(lines) > 1:
        text = f"{len(lines)} mistakes\n" + "\n".join(f"  - {line}" for line in lines)
    print(f"fedpers: error: {text}", file=sys.stderr)
    return USER_MISTAKE


# ---- commands -----------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    """The arguments of all commands; `action` of the parsed ones does the work."""
    top = argparse.ArgumentParser("fedpers", description="Personalised federated learning.")
    top.add_argument("--version", action="version", version=f"fedpers {__version__}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    run = "one run, or a sweep with -m; takes Hydra overrides such as method=fedavg rounds=50"
    bench = "speed and memory beside Flower's own simulation and other peers"
    commands.add_parser("run", add_help=False, help=run)
    commands.add_parser("bench", add_help=False, help=bench)
    _add(commands, "list", _list, "what there is to choose from")

    report = _add(commands, "report", _report, "mean and spread over seeds of finished runs")
    report.add_argument("runs", nargs="+", type=Path, help="run directories, or a sweep's")
    out = "folder of report.html, report.md and report/; default: the sweep's directory, else here"
    report.add_argument("--out", type=Path, help=out)
    report.add_argument("--json", type=Path, help="file for the numbers of the runs' only experiment")
    last = "ours beside the paper's numbers: means over so many last evaluations"
    report.add_argument("--last", type=int, help=last)
    target = "a score, such as 0.9: what it took each method to reach it; default: the runs' stop.target"
    report.add_argument("--target", type=float, help=target)
    columns = "of report/paper.tex: score, or test columns of metrics.csv such as worst_decile,loss"
    report.add_argument("--columns", default="score", help=columns)

    why = _add(commands, "explain", _explain, "the step that clients take, and what takes it: C or torch")
    why.add_argument("method", help="a name of `fedpers list`")
    why.add_argument("overrides", nargs="*", help="as of fedpers run: model=mlp method.local.optimizer=adam")

    export = _add(commands, "export", _export, "models of a run, for others to use")
    export.add_argument("run", type=Path, help="a run directory")
    model = "its name, such as global or center_0; may be left out if the method has one"
    export.add_argument("--model", help=model)
    client = "a client's personal model instead: its number or name in clients.csv, or all"
    export.add_argument("--client", help=client)
    export.add_argument("--onnx", action="store_true", help="write NAME.onnx besides (extra onnx)")
    out = "folder of NAME.safetensors and NAME.json; default: RUN/export"
    export.add_argument("--out", type=Path, help=out)

    use = _add(commands, "predict", _predict, "for new rows of data: an exported model, or a device's own")
    use.add_argument("rows", type=Path, help="a table, .npz or .npy with x, an image or a folder of images")
    use.add_argument("--state", type=Path, help="the device's state folder; default: its default")
    use.add_argument("--client", help="folder in it; may be left out if there is one")
    use.add_argument("--run", help="id of the run; default: the newest")
    use.add_argument("--model", type=Path, help="instead of a device's: a file of fedpers export")
    use.add_argument("--target", help="column of the known answers; default: that of training")
    use.add_argument("--out", type=Path, help="a .csv file; default: the screen")
    new = _add(commands, "new-method", _new_method, "a package with a method of your own, tests included")
    new.add_argument("name", help="small letters, digits and underscores")
    new.add_argument("--out", type=Path, help="its folder; default: fedpers_NAME here")

    data = commands.add_parser("data", help="download data sets")
    fetch = _add(data.add_subparsers(required=True, metavar="ACTION"), "fetch", _fetch, "download a data set")
    fetch.add_argument("name")
    fetch.add_argument("--root", type=Path, help="where to; default: $FEDPERS_DATA, else ~/.cache/fedpers")
    deployment.add(commands)
    return top


def _add(commands: Any, name: str, action: Callable[[Any], None], text: str) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=text)
    command.set_defaults(action=action)
    return command


def _list(args: Any) -> None:
    from fedpers.app.listing import show

    show()


def _report(args: Any) -> None:
    from fedpers.results.report.write import write_report

    write_report(args.runs, args.out, args.json, args.last, args.target, args.columns.split(","))


def _explain(args: Any) -> None:
    from fedpers.app.local_step import explain

    print(explain([f"method={args.method}", *args.overrides]))


def _export(args: Any) -> None:
    from fedpers.app.export import export

    for path in export(args.run, args.model, args.out, args.client, args.onnx):
        print(path)


def _predict(args: Any) -> None:
    from fedpers.app.predict import predict

    predict(args.rows, args.state, args.client, args.run, args.model, args.target, args.out)


def _new_method(args: Any) -> None:
    from fedpers.app.new_method import new_method

    folder = new_method(args.name, args.out)
    print(f"{folder}: install it with  python -m pip install --editable {folder}")
    print(f"then  python -m pytest {folder}  and  fedpers run method={args.name}")


def _fetch(args: Any) -> None:
    from fedpers.datasets.config import DataConfig
    from fedpers.datasets.fetch import fetch
    from fedpers.results.progress import download_bar

    root = args.root or DataConfig().folder()
    with download_bar(args.name) as progress:
        files = fetch(args.name, root, progress)
    print(f"{args.name} is in {root}" if files else f"{args.name} needs no files")
