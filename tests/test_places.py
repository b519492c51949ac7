"""Runs of a sweep over GPUs and cores: who is where, and what is done when memory runs out."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from fedpers.app import places, pool
from fedpers.app.cli import main
from fedpers.app.places import ANYWHERE, Place, Places, places_for
from fedpers.config import compose
from fedpers.config.search import SweepConfig
from fedpers.core import machine
from fedpers.results.progress import SweepBoard

QUICK = ["data.num_clients=3", "data.limit=90", "rounds=2", "model.hidden=[4]"]
A, B = Place("0", "GPU 0"), Place("1", "GPU 1")
RUN = compose.load([])
ON_CPU = replace(RUN, device="cpu")


def all_of(there, cfg, count):
    return [there.take(cfg) for _ in range(count)]


def test_runs_are_spread_over_the_gpus():
    assert all_of(Places(5, [A, B]), RUN, 6) == [A, B, A, B, A, None]
    assert all_of(Places(8, [A, B], per_gpu=1), RUN, 3) == [A, B, None]


def test_the_emptiest_gpu_is_next():
    there = Places(4, [A, B])
    all_of(there, RUN, 4)
    there.leave(B)
    assert there.take(RUN) == B


@pytest.mark.parametrize("cfg", [ON_CPU, replace(RUN, device="cuda:1"), replace(RUN, devices=(0, 1))])
def test_runs_that_name_their_devices_keep_what_they_see(cfg):
    there = Places(2, [A, B], per_gpu=1)
    assert all_of(there, cfg, 3) == [ANYWHERE, ANYWHERE, None]
    assert ANYWHERE.environment() == {}


def test_where_a_gpus_memory_ran_out_fewer_runs_are_at_once():
    there = Places(6, [A, B])
    all_of(there, RUN, 6)
    assert there.fewer(A, whole_machine=False) == 2
    there.leave(A)
    assert there.take(RUN) is None or there._running.count(A) <= 2
    for _ in range(2):
        there.leave(A)
    there.leave(B)
    taken = all_of(there, RUN, 9)
    assert there._running.count(A) == 2  # and B has the others
    assert taken.count(None) >= 1


def test_alone_nothing_can_be_taken_away():
    there = Places(3)
    there.take(ON_CPU)
    assert there.fewer(ANYWHERE, whole_machine=True) == 0 and there.jobs == 1


@pytest.mark.parametrize(
    ("gpus", "cores", "words", "jobs", "firsts"),
    [
        ([], 6, {}, 6, [""] * 6),
        ([0, 1], 6, {}, 6, ["GPU 0", "GPU 1"]),  # one a GPU
        ([0, 1], 6, {"jobs_per_gpu": 2}, 6, ["GPU 0", "GPU 1", "GPU 0", "GPU 1"]),
        ([0, 1, 2, 3], 2, {}, 2, ["GPU 0", "GPU 1"]),  # no more than cores
        ([0, 1], 6, {"jobs": 3}, 3, ["GPU 0", "GPU 1", "GPU 0"]),
        ([0, 1], 6, {"jobs": 4, "jobs_per_gpu": 1}, 4, ["GPU 0", "GPU 1"]),
    ],
)
def test_how_many_runs_auto_makes(monkeypatch, gpus, cores, words, jobs, firsts):
    monkeypatch.setattr(machine, "gpus", lambda: gpus)
    monkeypatch.setattr(machine, "cores", lambda: cores)
    there = places_for([RUN], SweepConfig(**({"jobs": "auto"} | words)))
    assert there.jobs == jobs
    found = [p.name for p in all_of(there, RUN, 7) if p is not None]
    assert found == firsts


def test_runs_with_workers_take_their_cores(monkeypatch):
    monkeypatch.setattr(machine, "gpus", list)
    monkeypatch.setattr(machine, "cores", lambda: 7)
    many = [compose.load(["engine.workers=3"]), RUN]
    assert places_for(many, SweepConfig(jobs="auto")).jobs == 2
    assert places_for([compose.load(["engine=ray"])], SweepConfig(jobs="auto")).jobs == 1


@pytest.mark.parametrize(
    ("visible", "names"),
    [(None, ["0", "2"]), ("4,5,6", ["4", "6"]), ("GPU-a,GPU-b,MIG-c", ["GPU-a", "MIG-c"])],
)
def test_a_gpu_keeps_its_name_in_the_runs_process(monkeypatch, visible, names):
    monkeypatch.setattr(machine, "gpus", lambda: [0, 2])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [p.environment()["CUDA_VISIBLE_DEVICES"] for p in places.granted()] == names


def test_keys_are_refused_where_they_do_nothing(capsys):
    assert main(["run", "-m", *QUICK, "seed=0,1", "jobs_per_gpu=2"]) == 2
    assert "jobs_per_gpu=2: without effect with jobs=1; set jobs=auto" in capsys.readouterr().err
    assert main(["run", *QUICK, "jobs=auto"]) == 2
    assert "jobs=auto: this command makes one run only" in capsys.readouterr().err
    assert main(["run", "-m", *QUICK, "seed=0,1", "jobs=all"]) == 2
    assert "jobs=all" in capsys.readouterr().err


TELLING = """
import os, pathlib
import fedpers
class Telling(fedpers.Observer):
    def on_start(self, out, config):
        pathlib.Path(out, "gpu").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "none"))
"""


def test_each_run_sees_its_gpu_alone_and_the_display_says_which(tmp_path, monkeypatch, capsys):
    (tmp_path / "telling.py").write_text(TELLING)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(machine, "gpus", lambda: [0, 1])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    words = ["run", "-m", *QUICK, "method=fedavg", "seed=0,1", "observers=[telling:Telling]", "jobs=2"]
    assert main([*words, f"out={tmp_path / 's'}"]) == 0
    assert sorted(p.read_text() for p in (tmp_path / "s").glob("*/gpu")) == ["GPU-a", "GPU-b"]
    said = capsys.readouterr().out
    assert "(GPU 0): accuracy" in said and "(GPU 1): accuracy" in said


HUNGRY = """
import os, pathlib, time
import torch
ROOM = pathlib.Path(os.environ["ROOM"])
class Hungry(torch.nn.Module):
    def __init__(self, who):
        super().__init__()
        self.fc = torch.nn.Linear(64, 10)
        tried = ROOM / "first-tried"
        if who == "first" and not tried.exists():
            while not (ROOM / "second-runs").exists():
                time.sleep(0.05)
            tried.touch()
            raise ERROR
        if who == "first":
            (ROOM / "beside").write_text(str((ROOM / "b" / "summary.json").exists()))
        if who == "second":
            (ROOM / "second-runs").touch()
            while not tried.exists():
                time.sleep(0.05)
            time.sleep(1)
    def forward(self, x):
        return self.fc(x.flatten(1))
"""


@pytest.mark.parametrize(
    "error", ["MemoryError()", "torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2 GiB')"]
)
def test_a_run_without_memory_is_made_again_beside_fewer(tmp_path, monkeypatch, error):
    module = f"hungry{len(error)}"
    (tmp_path / f"{module}.py").write_text(HUNGRY.replace("ERROR", error))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("ROOM", str(tmp_path))

    def task(who, folder):
        words = ["method=fedavg", "model=module", f"model.path={module}:Hungry", f"+model.kwargs.who={who}"]
        return pool.Task(compose.load([*words, *QUICK[:3]]), tmp_path / folder, label=who)

    screen = io.StringIO()
    with SweepBoard(2, 4, Console(file=screen, width=200)) as board:
        found = pool.run_all([task("first", "a"), task("second", "b")], Places(2), board)
    assert [r["status"] for r in found] == ["finished"] * 2
    assert (tmp_path / "beside").read_text() == "True"  # the other had ended before
    assert "first: out of memory beside 1 others; put back" in screen.getvalue()


def test_a_run_that_linux_killed_for_memory_is_told_from_one_killed_by_hand(tmp_path, monkeypatch):
    (tmp_path / "vmstat").write_text("oom_kill 3\n")
    monkeypatch.setattr(machine, "VMSTAT", tmp_path / "vmstat")
    child = object.__new__(pool._Child)
    child.killed_before, child.output = machine.killed_for_memory(), tmp_path / "none"

    class Ended:
        exitcode = -9

        def join(self):
            pass

    class Closed:
        def recv(self):
            raise EOFError

    child.process, child.messages = Ended(), Closed()
    assert type(child.hear(print)) is pool.Crash
    (tmp_path / "vmstat").write_text("oom_kill 4\n")
    found = child.hear(print)
    assert isinstance(found, pool.OutOfMemory) and found.of_host
