"""Memories in bounded RAM, in rows on disk, and in checkpoints that can always be gone back to."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest
import torch

from fedpers.checks.case import same
from fedpers.core.errors import CheckpointError
from fedpers.core.pytree import record
from fedpers.engines.memory import row_file as rows
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.memory.row_store import RowStore

W = (1, 0)


@record
class ClientState:
    """What a client of these tests remembers."""

    head: dict
    step: torch.Tensor
    note: str = "n"


def memory(value, size=100):
    head = {"w": torch.full((size, 2), float(value)), "b": torch.arange(3) + value}
    return ClientState(head, torch.tensor(value % 2 == 0))


def checkpoint(store, folder):
    folder.mkdir()
    store.save(folder)
    store.committed()


@pytest.mark.parametrize(
    "make",
    [RamStore, RowStore, lambda: RowStore(memory_mb=0), lambda: RowStore(memory_mb=0.01)],
    ids=["memory", "rows", "disk", "both"],
)
def test_a_store_gives_back_what_was_put(make):
    store = make()
    assert store.get(3, W) is None
    for round_ in range(3):
        for k in (3, 0, 77, 12):
            store.put(k, W, memory(k + round_))
    for k in (77, 3, 12, 0):
        assert same(store.get(k, W), memory(k + 2))
    assert store.get(1, W) is None
    assert store.get(10**6, W) is None
    for wanted in ([77, 10**6, 3, 1, 0], [12], [5, 127, 128], []):  # there is room for 128 on disk
        assert same(store.get_all([(k, W) for k in wanted]), [store.get(k, W) for k in wanted])
    assert list(store.states) == [0, 3, 12, 77] or isinstance(store, RamStore)


def test_ram_is_bounded_and_untouched_clients_cost_nothing(tmp_path):
    store = RowStore(tmp_path, memory_mb=0.05)
    for k in range(200):
        store.put(k, W, memory(k, 1000))
    assert store.held <= 0.05 * 2**20
    assert same(store.get(5, W), memory(5, 1000))
    store.put(10**6, W, memory(1, 1000))
    store.put(1, W, memory(1, 1000))
    size = sum(f.stat().st_size for f in tmp_path.iterdir())
    assert size <= 202 * (8000 + 24 + 8)


def test_different_shapes_and_plain_values_live_side_by_side():
    store = RowStore(memory_mb=0)
    things = [memory(1), memory(2, 7), ClientState({}, torch.tensor(1.0), "other"), {"a": 3}]
    for k, thing in enumerate(things):
        store.put(k, W, thing)
    for k, thing in enumerate(things):
        assert same(store.get(k, W), thing)
    store.put(0, W, memory(4, 7))  # another kind of row than before
    assert same(store.get(0, W), memory(4, 7))
    assert same(store.get(1, W), memory(2, 7))


@pytest.mark.parametrize("make", [RamStore, RowStore, lambda: RowStore(memory_mb=0.01)])
def test_states_put_together_are_as_put_alone(make):
    store, alone = make(), make()
    for clients in ([3, 0, 77], [5, 77, 2]):
        store.put_alike(clients, W, [memory(k + len(clients)) for k in clients])
        for k in clients:
            alone.put(k, W, memory(k + len(clients)))
    assert store.states.keys() == alone.states.keys()
    assert all(same(store.get(k, W), alone.get(k, W)) for k in (0, 2, 3, 5, 77))
    assert getattr(store, "held", 0) == getattr(alone, "held", 0)


def stacked(values, size=100):
    """`memory` of each value, in rows of three stacks."""
    column = torch.tensor(values, dtype=torch.float32)
    w, b = (
        column.view(-1, 1, 1).expand(-1, size, 2).clone(),
        torch.arange(3) + torch.tensor(values).view(-1, 1),
    )
    steps = column % 2 == 0
    return [
        ClientState({"w": x, "b": y}, z)
        for x, y, z in zip(w.unbind(), b.unbind(), steps.unbind(), strict=True)
    ]


@pytest.mark.parametrize("megabytes", [0, 0.03, 0.2, 100])
def test_states_may_be_rows_of_stacks(megabytes):
    """Some are replaced alone, some with others, some are on disk by then."""
    store, known, rng = RowStore(memory_mb=megabytes), {}, random.Random(0)
    for round_ in range(40):
        clients = rng.sample(range(30), rng.choice([1, 2, 5, 12]))
        values = [100 * round_ + k for k in clients]
        store.put_alike(clients, W, stacked(values) if round_ % 3 else [memory(v) for v in values])
        known.update(zip(clients, values, strict=True))
        assert store.held <= store.limit or len(store._hot) == 1
        k = rng.choice(list(known))
        assert same(store.get(k, W), memory(known[k]))
    assert {k: int(s.head["w"][0, 0]) for k, s in store.states.items()} == known
    assert all(same(store.get(k, W), memory(v)) for k, v in known.items())


@pytest.mark.parametrize(("others", "freed_at"), [(4, 3), (5, 2)])
def test_a_stack_of_which_most_is_replaced_is_freed(others, freed_at):
    """With three of four states, or with two where more than half of the RAM is taken."""
    alone = RowStore()
    alone.put(0, W, memory(0))
    row, store = alone.held, RowStore()
    store.limit = 18 * row
    for k in range(4, 4 + others):
        store.put(k, W, memory(k))
    states = stacked([0, 1, 2, 3])
    whole = weakref.ref(states[0].head["w"]._base)
    store.put_alike([0, 1, 2, 3], W, states)
    del states
    for replaced in range(1, freed_at + 1):
        assert whole() is not None
        assert store.held == row * (others + 4 + replaced - 1)
        store.put(replaced - 1, W, memory(10 + replaced))
    assert whole() is None
    assert store.held == row * (others + 4)
    found = [int(store.get(k, W).head["w"][0, 0]) for k in range(4 + others)]
    assert found == [11, 12, 13, 3][:freed_at] + list(range(freed_at, 4 + others))


def test_a_stack_goes_to_disk_as_a_whole(tmp_path):
    """Its memory is not freed before, so more would have to go."""
    store = RowStore(tmp_path, memory_mb=0.25)
    size = store.limit // 5 // 4 // 8  # four rows of two columns: a fifth, and less with what is beside
    for first in range(0, 24, 4):
        store.put_alike(range(first, first + 4), W, stacked(range(first, first + 4), size - 300))
    alone = RowStore()
    alone.put(0, W, memory(0, size - 300))
    assert len(store._hot) % 4 == 0 < len(store._hot) < 24
    assert store.held == alone.held * len(store._hot) <= store.limit
    large = stacked(range(8), size)  # two fifths
    whole = weakref.ref(large[0].head["w"]._base)
    store.put_alike(range(8), W, large)
    del large
    assert whole() is None  # too large to wait for its last row
    assert all(same(store.get(k, W), memory(k, size if k < 8 else size - 300)) for k in range(24))


@pytest.mark.parametrize("megabytes", [0, 100])
def test_a_checkpoint_can_be_gone_back_to(tmp_path, megabytes):
    store = RowStore(tmp_path / "rows", memory_mb=megabytes)
    for k in range(5):
        store.put(k, W, memory(k))
    checkpoint(store, tmp_path / "one")
    for k in range(3, 8):
        store.put(k, W, memory(k + 50))
    old = RowStore(tmp_path / "rows", memory_mb=megabytes)
    old.load(tmp_path / "one")
    found = old.get_all([(k, W) for k in (4, 9, 1)])  # before any was read
    assert same(found[0], memory(4)) and found[1] is None and same(found[2], memory(1))
    assert list(old.states) == [0, 1, 2, 3, 4]
    assert all(same(old.get(k, W), memory(k)) for k in range(5))


def test_while_a_checkpoint_is_written_the_one_before_stays(tmp_path):
    store = RowStore(tmp_path / "rows", memory_mb=0)
    store.put(0, W, memory(0))
    checkpoint(store, tmp_path / "one")
    store.put(0, W, memory(1))
    (tmp_path / "two").mkdir()
    store.save(tmp_path / "two")  # and the process dies before it is committed
    store.put(0, W, memory(2))
    for folder, value in (("one", 0), ("two", 1)):
        back = RowStore(tmp_path / "rows")
        back.load(tmp_path / folder)
        assert same(back.get(0, W), memory(value))


def test_a_checkpoint_copies_only_what_changed(tmp_path):
    store = RowStore(tmp_path / "rows", memory_mb=100)
    for k in range(50):
        store.put(k, W, memory(k))
    checkpoint(store, tmp_path / "one")
    written = []
    for file in store._files.values():
        write = file.write
        file.write = lambda row, tensors, write=write: (written.append(row), write(row, tensors))
    store.put(7, W, memory(8))
    checkpoint(store, tmp_path / "two")
    assert len(written) == 1
    for t in range(20):  # rows are used again: the file stays small
        store.put(7, W, memory(t))
        checkpoint(store, tmp_path / f"more{t}")
    assert max(file.high for file in store._files.values()) <= 53


@pytest.mark.skipif(sys.platform != "linux", reason="Linux has files with holes")
def test_disk_space_of_rows_that_no_checkpoint_needs_is_given_back(tmp_path):
    store, size, clients = RowStore(tmp_path / "rows", memory_mb=100), 10_000, range(12)
    for t in range(4):
        for k in clients:
            store.put(k, W, memory(100 * t + k, size))
        checkpoint(store, tmp_path / f"at{t}")
        taken = sum(f.stat().st_blocks * 512 for f in (tmp_path / "rows").iterdir())
        assert taken <= 1.2 * len(clients) * 8 * size
        back = RowStore(tmp_path / "rows")
        back.load(tmp_path / f"at{t}")
        assert all(same(back.get(k, W), memory(100 * t + k, size)) for k in clients)


def test_rows_go_on_after_a_restart(tmp_path):
    store = RowStore(tmp_path / "rows", memory_mb=0)
    for k in range(4):
        store.put(k, W, memory(k))
    checkpoint(store, tmp_path / "one")
    store.close()
    again = RowStore(tmp_path / "rows", memory_mb=0)
    again.load(tmp_path / "one")
    again.put(1, W, memory(9))
    again.put(9, W, memory(10))
    third = RowStore(tmp_path / "rows")
    third.load(tmp_path / "one")
    assert all(same(third.get(k, W), memory(k)) for k in range(4))
    assert same(again.get(1, W), memory(9))


def test_damage_is_reported(tmp_path):
    store = RowStore(tmp_path / "rows", memory_mb=0)
    for k in range(4):
        store.put(k, W, memory(k))
    checkpoint(store, tmp_path / "one")
    store.close()
    (file,) = (tmp_path / "rows").iterdir()
    os.truncate(file, 100)
    back = RowStore(tmp_path / "rows")
    back.load(tmp_path / "one")
    with pytest.raises(CheckpointError, match="ends before row"):
        back.get(3, W)
    (tmp_path / "one" / "clients.safetensors").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="clients"):
        back.load(tmp_path / "one")


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.test_store import RowStore, memory, checkpoint, W
out = Path({out!r})
store = RowStore(out / "rows", memory_mb=0)
for k in range(30):
    store.put(k, W, memory(k))
checkpoint(store, out / "one")
for k in range(0, 30, 2):
    store.put(k, W, memory(99))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_its_checkpoint(tmp_path):
    root = str(Path(__file__).resolve().parents[1])
    code = KILLED.format(root=root, out=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL
    back = RowStore(tmp_path / "rows")
    back.load(tmp_path / "one")
    assert all(same(back.get(k, W), memory(k)) for k in range(30))


@pytest.mark.parametrize("refuse", ["error", "short"])
def test_a_disk_that_refuses_is_an_error_of_a_later_call(tmp_path, monkeypatch, refuse):
    """Rows are written by a thread; no checkpoint may be made of what is not there."""

    def pwrite(handle, content, at):
        if refuse == "error":
            raise OSError(28, "No space left on device")
        return 0

    store = RowStore(tmp_path / "rows", memory_mb=0)
    store.put(0, W, memory(0))
    checkpoint(store, tmp_path / "1")
    with monkeypatch.context() as patch:
        patch.setattr(rows.os, "pwrite", pwrite)
        with pytest.raises(CheckpointError, match=r"rows-.*free space"):
            for k in range(5):
                store.put(k, W, memory(k + 7))
            checkpoint(store, tmp_path / "2")
    again = RowStore(tmp_path / "rows")
    again.load(tmp_path / "1")
    assert same(again.get(0, W), memory(0))


def test_rows_that_are_on_their_way_are_read_whole(tmp_path, monkeypatch):
    real = os.pwrite

    def slow(handle, content, at):
        time.sleep(0.01)
        return real(handle, content, at)

    monkeypatch.setattr(rows.os, "pwrite", slow)
    store = RowStore(tmp_path, memory_mb=0)
    for k in range(12):
        store.put(k, W, memory(k, 1000))
        assert all(same(store.get(j, W), memory(j, 1000)) for j in range(max(0, k - 1), k + 1))


def test_a_row_is_read_while_others_are_on_their_way(tmp_path, monkeypatch):
    real, go_on = os.pwrite, threading.Event()

    def blocked(handle, content, at):
        assert at == 0 or go_on.wait(60)
        return real(handle, content, at)

    monkeypatch.setattr(rows.os, "pwrite", blocked)
    store = RowStore(tmp_path, memory_mb=0)
    for k in range(4):  # the last one stays in RAM
        store.put(k, W, memory(k))
    assert same(store.get(0, W), memory(0))
    threading.Timer(0.05, go_on.set).start()
    assert same(store.get(2, W), memory(2))
    assert go_on.is_set()


def test_what_is_on_its_way_is_bounded(tmp_path, monkeypatch):
    real, go_on = os.pwrite, threading.Event()
    monkeypatch.setattr(rows.os, "pwrite", lambda *args: go_on.wait(60) and real(*args))
    monkeypatch.setattr(rows, "LATE", 3000)
    store = RowStore(tmp_path, memory_mb=0)
    for k in range(4):  # three rows of 832 bytes leave
        store.put(k, W, memory(k))
    assert not go_on.is_set()
    threading.Timer(0.05, go_on.set).start()
    for k in range(4, 7):
        store.put(k, W, memory(k))
    assert go_on.is_set()
    assert all(same(store.get(k, W), memory(k)) for k in range(7))


def test_clients_keep_their_rows_while_the_list_grows(tmp_path):
    """Numbers far apart come in any order, again and again, before and after a checkpoint."""
    store, values = RowStore(tmp_path, memory_mb=0), {}
    asked = [[5, 2], [901, 2, 5], [70_000, 901, 4], [3, 70_000, 1_000_000], [0, 5, 70_000]]
    for t, clients in enumerate(asked):
        values |= {k: k + t / 8 for k in clients}
        for odd in (0, 1):
            alike = [k for k in clients if k % 2 == odd]
            store.put_alike(alike, W, [memory(values[k], 100 + odd) for k in alike])
        if t == 2:
            checkpoint(store, tmp_path / "3")
            then = dict(values)
    expected = lambda values: {k: memory(v, 100 + k % 2) for k, v in sorted(values.items())}  # noqa: E731
    assert same(store.states, expected(values))
    store.load(tmp_path / "3")
    assert same(store.states, expected(then))
