"""A sweep of 200 tiny runs in jobs, killed (-9) at random and begun again each time: does its report change?

Sometimes one job is killed, sometimes the command with all of its jobs; the folders' progress decides when.
The report is compared with that of a sweep that nobody disturbed.

    python benchmarks/killed_jobs.py [--runs 200] [--kills 20] [jobs=2 | hydra/launcher=submitit_local]
"""

import argparse
import csv
import io
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from fedpers.results.report.write import write_report

QUICK = ("data.num_clients=3", "data.limit=90", "rounds=2", "checkpoint_every=1", "model.hidden=[4]")
TIMES = {"seconds": lambda v: v and "1", "between_seconds": lambda v: ""}  # of a row of metrics.csv


def sweep(runs: int, words: Sequence[str], out: Path) -> list[str]:
    """The command."""
    seeds = ",".join(map(str, range(runs // 2)))
    setting = ["method=fedavg,local", f"seed={seeds}", *QUICK, *words, f"out={out}"]
    return [sys.executable, "-m", "fedpers", "run", "-m", *setting]


def start(command: Sequence[str]) -> "subprocess.Popen[str]":
    """The command in a session of its own, so that it can be killed with all of its jobs."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, start_new_session=True, **quiet)  # type: ignore[call-overload]


def finished(out: Path) -> int:
    """How many runs are there as a whole."""
    return sum(1 for _ in out.glob("*/summary.json"))


def disturbed(
    command: Sequence[str], out: Path, runs: int, kills: int, rng: random.Random
) -> tuple[int, int]:
    """Run until all is there; returns (commands killed, jobs killed)."""
    found = [0, 0]
    marks = sorted(rng.sample(range(runs - 1), kills))
    while finished(out) < runs:
        process = start(command)
        while process.poll() is None:
            if marks and finished(out) >= marks[0]:
                time.sleep(rng.random() / 2)
                marks.pop(0)
                found[kill(process, rng)] += 1
            time.sleep(0.05)
        said = process.communicate()[1]
        if not marks and process.returncode and finished(out) < runs:
            print(f"ended with {process.returncode}: {said[-300:]}", flush=True)
    return found[0], found[1]


def kill(process: "subprocess.Popen[str]", rng: random.Random) -> int:
    """Kill the command with all that it started (0), or one job of it (1)."""
    family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    if family and rng.random() < 0.5:
        rng.choice(family).kill()
        return 1
    for one in [*family, *([psutil.Process(process.pid)] if process.poll() is None else [])]:
        try:
            one.kill()
        except psutil.Error:
            continue
    process.wait()
    return 0


def without_times(run: Path) -> None:
    """Set what a run measures of time to 1 s, and the commit, which may change meanwhile, to one."""
    rows = list(csv.DictReader(io.StringIO((run / "metrics.csv").read_text())))
    lines = [",".join(rows[0])]
    lines += [",".join(TIMES.get(k, lambda v: v)(v) for k, v in row.items()) for row in rows]
    (run / "metrics.csv").write_text("\n".join(lines) + "\n")
    summary = json.loads((run / "summary.json").read_text())
    summary |= {key: 1.0 for key in summary if key.endswith("_seconds")} | {"git_commit": "0123456789"}
    (run / "summary.json").write_text(json.dumps(summary))


def report(out: Path) -> str:
    """The report of a sweep, without times and the name of its folder."""
    for summary in out.glob("*/summary.json"):
        without_times(summary.parent)
    write_report([out], out)
    return (out / "report.md").read_text().replace(str(out), "OUT").replace(out.name, "OUT")


def main() -> int:
    """Make both sweeps and compare their reports."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("words", nargs="*", default=["jobs=2"])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        whole, part = Path(folder) / "whole", Path(folder) / "part"
        process = start(sweep(args.runs, args.words, whole))
        if process.communicate() and finished(whole) < args.runs:
            raise SystemExit(f"the undisturbed sweep has {finished(whole)} of {args.runs} runs")
        print("undisturbed", flush=True)
        killed = disturbed(
            sweep(args.runs, args.words, part), part, args.runs, args.kills, random.Random(args.seed)
        )
        print(f"{args.runs} runs, {killed[0]} commands and {killed[1]} jobs killed", flush=True)
        same = report(whole) == report(part)
    print("OK: the reports are equal" if same else "the reports differ")
    return not same


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
