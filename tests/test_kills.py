"""A sweep killed (-9) at ten random moments and begun again each time reports as an undisturbed one does."""

import csv
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fedpers.app.run_folder import stored_config
from fedpers.results.report.write import write_report
from fedpers.results.summary import read_summary

SWEEP = [
    *("run", "-m", "method=fedavg,local", "seed=0,1,2", "data.num_clients=3", "data.limit=90"),
    *("rounds=2", "checkpoint_every=1", "model.hidden=[4]"),
]
# One process imports everything, then forks a child a sweep. It kills a child once the sweep's folder holds
# so many files: progress that is seen, not seconds, decides when.
KILLER = """
import os, random, signal, sys, time
from pathlib import Path
import fedpers.app.run, fedpers.app.backends, fedpers.strategies.fedavg, fedpers.strategies.local
from fedpers.results.plots import curves
from fedpers.app.cli import main
from fedpers.config import compose

def start(out):
    pid = os.fork()
    if pid == 0:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        try:
            os._exit(main([*words, f"out={out}"]))
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(3)
    return pid

def files(out):
    return sum(len(names) for _, _, names in os.walk(out))  # passes over a folder that is just being renamed

def ended(pid):
    found, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status

whole, part, words = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
def draw(out, federation, arrays):  # pictures as files, among which a run is killed too
    (out / "plots").mkdir(exist_ok=True)
    for name in ("partition", "learning_curves"):
        (out / "plots" / f"{name}.png").touch()

curves.draw_run = draw
# the check of the overrides, once instead of twelve times
lines, settings = compose.prepare(words[2:], True)
compose.prepare = lambda *_: (list(lines), settings)
ended(start(whole))
total, rng, kills = files(whole), random.Random(15), 0
for least in sorted(rng.sample(range(1, total), 10)):
    pid, over = start(part), 0
    while files(part) < least and not over:
        over = os.waitpid(pid, os.WNOHANG)[0]
        time.sleep(0.003)
    if not over:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        kills += 1
ended(start(part))
print(kills)
"""


def without_times(run: Path) -> None:
    """Set every time in a run's numbers to 1 s, and the commit, which may change while this runs, to one."""
    rows = list(csv.DictReader(io.StringIO((run / "metrics.csv").read_text())))
    lines = [",".join(rows[0])] + [
        ",".join({"seconds": v and "1", "between_seconds": ""}.get(k, v) for k, v in row.items())
        for row in rows
    ]
    (run / "metrics.csv").write_text("\n".join(lines) + "\n")
    summary = json.loads((run / "summary.json").read_text())
    for key in [k for k in summary if k.endswith("_seconds")]:
        summary[key] = 1.0
    summary["git_commit"] = "0123456789"
    (run / "summary.json").write_text(json.dumps(summary))


def numbers(run: Path) -> list[dict[str, str]]:
    """metrics.csv without times."""
    rows = csv.DictReader(io.StringIO((run / "metrics.csv").read_text()))
    return [{k: v for k, v in row.items() if not k.endswith("seconds")} for row in rows]


def reported(folder: Path) -> dict[str, bytes]:
    """The report of a sweep's folder, file by file."""
    for summary in folder.glob("*/summary.json"):
        without_times(summary.parent)
    write_report([folder])
    paths = [folder / "report.html", folder / "report.md", *sorted((folder / "report").iterdir())]
    return {str(p.relative_to(folder)): p.read_bytes() for p in paths if p.suffix != ".svg"}


@pytest.mark.slow
def test_a_sweep_killed_ten_times_reports_as_an_undisturbed_one(tmp_path: Path) -> None:
    whole, part = tmp_path / "whole" / "sweep", tmp_path / "part" / "sweep"
    command = [sys.executable, "-c", KILLER, str(whole), str(part), *SWEEP]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[-1]) >= 8  # a sweep may end just before its kill
    assert len(list(part.glob("*/summary.json"))) == 6
    for run in whole.glob("*/summary.json"):
        same = part / run.parent.name
        assert stored_config(same) == replace(stored_config(run.parent), out=str(same))
        assert read_summary(same)["best"] == read_summary(run.parent)["best"]
        assert numbers(same) == numbers(run.parent)
    want, found = reported(whole), reported(part)
    assert want.keys() == found.keys()
    for name, content in want.items():
        assert found[name] == content, name
    assert re.search(rb"fedavg", want["report.md"])
