"""Freed memory goes back to the system when a run ends, and not before."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fedpers
from fedpers.core.memory import YOUNG, gc_frozen

HELD = """
import os
from fedpers.core.memory import give_back

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20

pieces = [bytes(2000) for _ in range(50_000)]  # 95 MB
pieces[::] = pieces[::100]  # what is left lies everywhere between
before = resident()
give_back()
print(before - resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_what_lies_between_used_pieces_goes_back():
    found = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    assert float(found.stdout) > 50  # MB of the 94 that were freed


KEPT = """
import resource, sys
from fedpers.core.memory import give_back, keep_freed

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if sys.argv[1] == "keep":
    keep_freed()
size = 12 * 2**20
for _ in range(2):
    stacks = [bytearray(size) for _ in range(6)]
    del stacks
before = faults()
stacks = [bytearray(size) for _ in range(6)]
del stacks
print(faults() - before)
before = faults()
give_back()
stacks = [bytearray(size) for _ in range(6)]
print(faults() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_what_a_round_freed_is_there_for_the_next():
    pages = 6 * 12 * 2**20 // 4096
    kept, after = (int(n) for n in _lines(KEPT, "keep"))
    assert kept < pages / 10 < pages / 2 < after  # what was given back has to be asked for again
    assert int(_lines(KEPT, "do not")[0]) > pages / 10


ASKED = """
import os
from fedpers.core.memory import keep_freed

def kilobytes(what):
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(what))

before = kilobytes("Rss")
keep_freed()
print(kilobytes("Rss") - before)
stack = bytearray(os.urandom(1)) * (100 * 2**20)
print(kilobytes("AnonHugePages"))
del stack
keep_freed()  # of the next run in this process
print(kilobytes("Rss") - before)
"""
SWITCH = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(
    not SWITCH.exists() or "[never]" in SWITCH.read_text(), reason="this system gives no huge pages"
)
def test_stacks_lie_in_huge_pages_and_room_for_them_takes_no_memory():
    room, huge, after = (int(n) / 1024 for n in _lines(ASKED))
    assert room < 8  # MB
    assert huge > 80  # of 100
    assert after < 120


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_without_room_there_are_no_huge_pages():
    """Where a process may not take so much, all goes on."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_DATA, (400 * 2**20,) * 2)\n"
    code = "from fedpers.core.memory import keep_freed; keep_freed(); print(len(bytearray(2**25)))"
    assert _lines(limit + code) == [str(2**25)]


def _lines(code, *args):
    found = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    return found.stdout.split()


@pytest.mark.parametrize("young", [700, 10**6, 0])
def test_garbage_is_looked_for_rarely_while_rounds_run(young):
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    gc.set_threshold(young, *before[1:])
    try:
        with pytest.raises(KeyError), gc_frozen():
            assert gc.get_threshold() == (max(young, YOUNG) if young else 0, *before[1:])
            assert gc.get_freeze_count() > frozen
            raise KeyError
        assert gc.get_threshold() == (young, *before[1:])
        assert gc.get_freeze_count() <= frozen  # from Python 3.12 on some are frozen from the start
    finally:
        gc.set_threshold(*before)


FROZEN = """
import gc
gc.freeze()  # as Python 3.12 does when it starts
assert gc.get_freeze_count()
from fedpers.core.memory import gc_frozen
with gc_frozen():
    pass
print(gc.get_freeze_count())
gc.freeze()  # the user's own stays
with gc_frozen():
    pass
print(gc.get_freeze_count() > 0)
"""


def test_what_the_interpreter_froze_is_not_the_users():
    """Else what a run left in cycles stayed for ever."""
    assert _lines(FROZEN) == ["0", "True"]


@pytest.mark.parametrize(
    ("model", "given_back"), [({"name": "module", "path": "tests.own_nets:Plain"}, True), ("mlp", False)]
)
def test_what_stacks_by_autograd_free_goes_back_during_a_round(model, given_back, monkeypatch, tmp_path):
    """Clients' states lie between; a stack by a kernel of ours uses the same memory again."""
    freed = []
    monkeypatch.setattr("fedpers.engines.runner.CHURN", 0)
    monkeypatch.setattr("fedpers.engines.runner.give_back", lambda: freed.append(1))
    rows = [(torch.randn(8, 16), torch.arange(8) % 3) for _ in range(4)]
    data = fedpers.Federation.from_arrays(rows)
    fedpers.run("ditto", "engine.runner=stack", data=data, model=model, rounds=1, out=tmp_path)
    assert bool(freed) == given_back
