"""On a signal a run is saved after its round and ends; the same command goes on, to the same bits."""

import os
import signal
import subprocess
import sys
import time

import pytest

from fedpers.app import preemption
from fedpers.app.cli import main
from fedpers.results.files import read_csv
from fedpers.results.summary import read_summary

WORDS = ["method=fedper", "data.num_clients=3", "data.limit=90", "rounds=40", "checkpoint_every=0"]
SLOW = """
import time
import fedpers
class Slow(fedpers.Observer):
    def on_round(self, t, log):
        time.sleep(0.2)
"""


def numbers(out):
    rows = read_csv(out / "metrics.csv")[0]
    return [{k: v for k, v in r.items() if not k.endswith("seconds")} for r in rows]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("one") / "run"
    assert main(["run", *WORDS, f"out={out}"]) == 0
    return numbers(out)


def start(tmp_path, *words):
    (tmp_path / "slow.py").write_text(SLOW)
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "fedpers", "run", *WORDS, "observers=[slow:Slow]", *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def wait_for(condition, process):
    deadline = time.monotonic() + 400
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def rounds(out):
    path = out / "metrics.csv"
    return path.read_text().count("train") if path.exists() else 0


def test_a_run_is_saved_and_the_same_command_goes_on(tmp_path, undisturbed):
    """Also with checkpoint_every=0, which saves nothing else; a worker is not ended by the job's signal."""
    number = signal.SIGTERM
    out = tmp_path / "a"
    process = start(tmp_path, "engine.workers=2", f"out={out}")
    wait_for(lambda: rounds(out) >= 3, process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 128 + number
    assert f"saved on {number.name}: the same command goes on" in errors and "Traceback" not in errors
    assert read_summary(out)["status"] == "interrupted" and 3 <= rounds(out) < 40
    assert main(["run", *WORDS, f"out={out}"]) == 0
    assert numbers(out) == undisturbed
    assert main(["run", *WORDS, f"out={out}"]) == 2  # a finished run is no beginning


def test_runs_of_a_sweep_are_saved_too(tmp_path):
    out = tmp_path / "s"
    process = start(tmp_path, "-m", "seed=0,1", "jobs=2", f"out={out}")
    both = lambda: sum(rounds(p.parent) >= 2 for p in out.glob("*/metrics.csv")) == 2  # noqa: E731
    wait_for(both, process)
    process.send_signal(signal.SIGUSR1)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGUSR1, errors
    assert "saved on SIGUSR1" in errors and "Traceback" not in errors
    assert [read_summary(p.parent)["status"] for p in out.glob("*/metrics.csv")] == ["interrupted"] * 2


def test_a_job_that_slurm_restarts_finds_its_beginning(tmp_path, monkeypatch, undisturbed):
    words = [w for w in WORDS if "checkpoint" not in w]
    assert main(["run", *words, "rounds=20", f"out={tmp_path / 'a'}"]) == 0
    (tmp_path / "a" / "summary.json").unlink()  # as if the node had died
    assert main(["run", *words, f"out={tmp_path / 'a'}"]) == 2
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert main(["run", *words, f"out={tmp_path / 'a'}"]) == 0
    assert numbers(tmp_path / "a") == undisturbed


def test_handlers_of_others_are_left_alone_and_ours_go(monkeypatch):
    theirs = lambda *_: None  # noqa: E731
    before = signal.signal(signal.SIGUSR1, theirs), signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with preemption.heeded():
            assert signal.getsignal(signal.SIGUSR1) is theirs
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and not preemption.asked()
    finally:
        signal.signal(signal.SIGUSR1, before[0])
        signal.signal(signal.SIGTERM, before[1])
