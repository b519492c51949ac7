"""Hydra's launchers start the runs of a sweep: in jobs of submitit, in joblib's processes, on Ray."""

import os
import subprocess
import sys

import pandas as pd
import pytest

from fedpers.app.cli import main
from fedpers.results.report.runs import find_runs

QUICK = ["data.num_clients=3", "data.limit=90", "rounds=2", "model.hidden=[4]"]
SWEEP = ["run", "-m", "method=fedavg,local", "seed=0", *QUICK]
LOCAL = ["hydra/launcher=submitit_local", "hydra.launcher.timeout_min=10"]


def numbers(folder):
    found = {p.parent.name: pd.read_csv(p) for p in sorted(folder.glob("*/metrics.csv"))}
    return {name: table.drop(columns=["seconds", "between_seconds"]) for name, table in found.items()}


def launched(*words, timeout=550):
    """In a process of its own: launchers set handlers and start what outlives a test."""
    command = [sys.executable, "-m", "fedpers", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env={**os.environ})


def same(one, other):
    first, second = numbers(one), numbers(other)
    assert first.keys() == second.keys() and first
    for name, table in first.items():
        pd.testing.assert_frame_equal(table, second[name], check_exact=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plugin", "words"),
    [
        ("hydra_submitit_launcher", LOCAL),
        ("hydra_joblib_launcher", ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]),
        pytest.param(
            "hydra_ray_launcher",
            ["hydra/launcher=ray", "+hydra.launcher.ray.init.include_dashboard=false"],
            marks=pytest.mark.ray,
        ),
    ],
)
def test_a_launchers_runs_are_those_of_one_process(tmp_path, plugin, words):
    pytest.importorskip(f"hydra_plugins.{plugin}")
    assert main([*SWEEP, f"out={tmp_path / 'one'}"]) == 0
    done = launched(*SWEEP, *words, f"out={tmp_path / 'many'}")
    assert done.returncode == 0, done.stdout + done.stderr
    same(tmp_path / "one", tmp_path / "many")
    assert len(find_runs([tmp_path / "many"])) == 2
    if words is not LOCAL:  # what a job finds is not the launcher's affair: one of them says it again
        return
    finished = {p: p.stat().st_mtime_ns for p in (tmp_path / "many").glob("*/summary.json")}
    assert launched(*SWEEP, *words, f"out={tmp_path / 'many'}").returncode == 0
    assert {p: p.stat().st_mtime_ns for p in finished} == finished  # left alone


@pytest.mark.parametrize("word", ["jobs=2", "tune=4"])
def test_jobs_and_tune_say_why_they_do_not_go_with_a_launcher(tmp_path, capsys, word):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    assert main([*SWEEP, *LOCAL, word, f"out={tmp_path / 'a'}"]) == 2
    said = capsys.readouterr().err
    assert "these runs are started by fedpers; leave out hydra/launcher=" in said
    assert not list(tmp_path.iterdir())  # nor was a process started
