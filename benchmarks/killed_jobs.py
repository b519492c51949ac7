"""A sweep of 200 tiny runs in jobs, killed (-9) at random and begun again each time: does its report change?

Sometimes one job is killed, sometimes the command with all of its jobs; the folders' progress decides when.
The report is compared with that of a sweep in one process that nobody disturbed. A launcher starts all jobs
of a command at once, so that --together many are asked for at a time. With --folder an ended script goes on.

    python benchmarks/killed_jobs.py [--runs 200] [--kills 20] [--json FILE] [--folder FOLDER] [jobs=2]
    python benchmarks/killed_jobs.py --together 8 [...] hydra/launcher=submitit_local
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
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

import psutil

from fedpers.bench.main import keep
from fedpers.results.report.write import write_report

QUICK = ("data.num_clients=3", "data.limit=90", "rounds=2", "checkpoint_every=1", "model.hidden=[4]")
TIMES = {"seconds": lambda v: v and "1", "between_seconds": lambda v: ""}  # of a row of metrics.csv


def sweep(seeds: range, words: Sequence[str], out: Path) -> list[str]:
    """The command: two runs a seed."""
    setting = ["method=fedavg,local", f"seed={','.join(map(str, seeds))}", *QUICK, *words, f"out={out}"]
    return [sys.executable, "-m", "fedpers", "run", "-m", *setting]


def start(command: Sequence[str], said: Path) -> "subprocess.Popen[bytes]":
    """The command in a session of its own, so that it can be killed with all its jobs; it writes to a file.

    A pipe that nobody reads would stop it when it is full.
    """
    with said.open("wb") as file:
        return subprocess.Popen(command, start_new_session=True, stdout=file, stderr=subprocess.STDOUT)


def finished(out: Path) -> int:
    """How many runs are there as a whole."""
    return sum(1 for _ in out.glob("*/summary.json"))


def disturbed(
    command: Sequence[str],
    out: Path,
    wanted: int,
    marks: list[int],
    rng: random.Random,
    found: dict[str, int],
) -> None:
    """Run until all is there; kill whenever as many runs are finished as `marks` say, counted in `found`."""
    while finished(out) < wanted:
        said = out.with_suffix(".log")
        process = start(command, said)
        while process.poll() is None:
            if marks and finished(out) >= marks[0]:
                time.sleep(rng.random() / 2)
                marks.pop(0)
                found[kill(process, rng)] += 1
            time.sleep(0.05)
        found["begun"] += 1
        if not marks and process.returncode and finished(out) < wanted:
            print(f"ended with {process.returncode}: {said.read_text()[-300:]}", flush=True)


def kill(process: "subprocess.Popen[bytes]", rng: random.Random) -> str:
    """Kill the command with all that it started, or one of its processes; says which."""
    family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    one_job = bool(family) and rng.random() < 0.5
    for one in [rng.choice(family)] if one_job else family:
        with suppress(psutil.Error):
            one.kill()
    if one_job:
        return "jobs"
    process.kill()
    process.wait()
    return "commands"


def without_times(run: Path) -> None:
    """Set what a run measures of time to 1 s and the commit to one, leave out the memory of its process."""
    rows = list(csv.DictReader(io.StringIO((run / "metrics.csv").read_text())))
    lines = [",".join(rows[0])]
    lines += [",".join(TIMES.get(k, lambda v: v)(v) for k, v in row.items()) for row in rows]
    (run / "metrics.csv").write_text("\n".join(lines) + "\n")
    summary = json.loads((run / "summary.json").read_text())
    summary.pop("peak_memory_mb", None)  # known where a process makes one run
    summary |= {key: 1.0 for key in summary if key.endswith("_seconds")} | {"git_commit": "0123456789"}
    (run / "summary.json").write_text(json.dumps(summary))


def report(out: Path) -> str:
    """The report of a sweep, without times and the name of its folder."""
    for summary in out.glob("*/summary.json"):
        without_times(summary.parent)
    with redirect_stdout(io.StringIO()):
        write_report([out], out)
    return (out / "report.md").read_text().replace(str(out), "OUT").replace(out.name, "OUT")


def compare(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Make both sweeps in a folder, or what is missing of them, and compare their reports."""
    folder.mkdir(parents=True, exist_ok=True)
    whole, part = folder / "whole", folder / "part"
    seeds, rng = range(args.runs // 2), random.Random(args.seed)
    began, found = time.monotonic(), {"commands": 0, "jobs": 0, "begun": 0}
    said = folder / "whole.log"
    start(sweep(seeds, (), whole), said).wait()
    if finished(whole) < args.runs:
        text = said.read_text()[-300:]
        raise SystemExit(f"the undisturbed sweep has {finished(whole)} of {args.runs} runs: {text}")
    print(f"undisturbed: {time.monotonic() - began:.0f} s", flush=True)
    marks = [m for m in sorted(rng.sample(range(args.runs - 1), args.kills)) if m >= finished(part)]
    each = max(args.together // 2, 1) if args.together else len(seeds)
    for first in range(0, len(seeds), each):
        some = seeds[first : first + each]
        wanted = 2 * some.stop
        due = [m for m in marks if m < wanted - 1]
        marks = [m for m in marks if m >= wanted - 1]
        disturbed(sweep(some, args.words, part), part, wanted, due, rng, found)
    same = report(whole) == report(part)
    names = {"commands": "commands_killed", "jobs": "processes_killed", "begun": "commands_begun"}
    counts = {new: found[old] for old, new in names.items()}
    return {"runs": args.runs, "by": " ".join(args.words), **counts, "seconds": time.monotonic() - began,
            "reports": "equal" if same else "differ"}  # fmt: skip


def main() -> int:
    """Compare, and write what was found."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("words", nargs="*", default=["jobs=2"])
    for name, value in (("runs", 200), ("kills", 20), ("seed", 0), ("together", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--folder", type=Path, help="where both sweeps are made, and stay")
    parser.add_argument("--json", type=Path, help="of benchmarks/results; other launchers' rows stay")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        row = compare(args.folder or Path(folder), args)
    print(row, flush=True)
    if args.json:
        write(args.json, row)
    return int(row["reports"] != "equal")


def write(file: Path, row: dict[str, Any]) -> None:
    """Add the row to a file of results, in place of that of the same launcher."""
    known = json.loads(file.read_text()) if file.exists() else {"rows": [], "command": ""}
    rows = [r for r in known["rows"] if r["by"] != row["by"]] + [row]
    lines = [line for line in known["command"].splitlines() if not line.endswith(f" {row['by']}")]
    keep(rows, "\n".join([*lines, " ".join(["python", *sys.argv])]), file)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
