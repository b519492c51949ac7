"""A client's own state: exactly once, never another run's, never silently new."""

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpers.core.errors import CheckpointError, FedpersError
from fedpers.deploy.private_state import PrivateState, Recall, StateLost, Version

RUN, OTHER = "0" * 32, "1" * 32


def store(folder: Path, run: str = RUN, **options: Any) -> PrivateState:
    return PrivateState(folder, "site-a", run, **options)


def put(s: PrivateState, version: Version, value: float) -> None:
    s.put(0, version, {"head": torch.tensor([value])})


def held(s: PrivateState, since: Version | None, keep: Version | None = None) -> float | None:
    s.recall = Recall(since, keep)
    state = s.get(0, (99, 0))
    return None if state is None else float(state["head"])


def test_the_version_that_the_server_took_is_loaded_and_no_other(tmp_path: Path) -> None:
    s = store(tmp_path)
    put(s, (1, 0), 1.0)
    assert held(s, (1, 0)) == 1.0
    put(s, (2, 0), 2.0)  # its reply is lost
    assert held(s, (1, 0)) == 1.0 and held(s, None) is None
    put(s, (3, 0), 3.0)
    assert held(s, (3, 0)) == 3.0


def test_what_a_checkpoint_may_go_back_to_is_kept_and_the_rest_is_not(tmp_path: Path) -> None:
    s = store(tmp_path)
    for t in range(1, 8):
        s.recall = Recall((t - 1, 0) if t > 1 else None, (2, 0) if t > 2 else None)
        put(s, (t, 0), float(t))
    assert s.versions() == [(2, 0), (6, 0), (7, 0)]
    assert held(s, (2, 0)) == 2.0


def test_a_new_run_finds_nothing_of_an_old_one(tmp_path: Path) -> None:
    put(store(tmp_path), (1, 0), 1.0)
    with pytest.raises(StateLost):
        held(store(tmp_path, OTHER), (1, 0))
    assert held(store(tmp_path, OTHER), None) is None


def test_a_wiped_or_damaged_state_is_refused_by_name(tmp_path: Path) -> None:
    s = store(tmp_path)
    put(s, (1, 0), 1.0)
    (s.folder / "1-0.safetensors").write_bytes(b"damaged")
    with pytest.raises(StateLost, match=r"site-a .* round 1, .*reinitialise"):
        held(s, (1, 0))
    (s.folder / "1-0.safetensors").unlink()
    with pytest.raises(StateLost, match="site-a"):
        held(s, (1, 0))


def test_a_device_may_allow_a_new_state_and_that_is_told(tmp_path: Path) -> None:
    s = store(tmp_path, lost="reinitialise")
    assert held(s, (1, 0)) is None and s.reinitialised
    put(s, (2, 0), 2.0)
    assert held(s, (2, 0)) == 2.0 and not s.reinitialised


def test_only_the_owner_may_look(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o755)
    s = store(tmp_path / "state")
    put(s, (1, 0), 1.0)
    folders = [tmp_path / "state", tmp_path / "state" / "site-a", s.folder]
    assert {stat.S_IMODE(f.stat().st_mode) for f in folders} == {0o700}
    assert stat.S_IMODE((s.folder / "1-0.safetensors").stat().st_mode) == 0o600


def test_a_full_disk_leaves_the_version_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s = store(tmp_path)
    put(s, (1, 0), 1.0)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    s.recall = Recall((1, 0), None)
    with monkeypatch.context() as patch, pytest.raises(CheckpointError, match="No space left"):
        patch.setattr(os, "fsync", full)
        put(s, (2, 0), 2.0)
    assert s.versions() == [(1, 0)] and held(s, (1, 0)) == 1.0
    assert not list(s.folder.glob("*.part"))


@pytest.mark.parametrize("run", ["", "../x", "A" * 32, "0" * 31])
def test_a_run_id_is_no_path(tmp_path: Path, run: str) -> None:
    with pytest.raises(FedpersError, match="run id"):
        store(tmp_path, run)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 3)), max_size=30))
def test_whatever_is_lost_the_server_and_the_client_agree(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[bool, bool, int]]
) -> None:
    """A counter: each exchange adds one. Replies may be lost, the server may crash and go back."""
    s = store(tmp_path_factory.mktemp("state"))
    since: Version | None = None
    keep: Version | None = None
    believed = saved = 0.0
    for number, (lost, checkpoint, crash) in enumerate(events):
        value = (held(s, since, keep) or 0.0) + 1.0
        put(s, (number + 1, 0), value)
        if not lost:
            since, believed = (number + 1, 0), believed + 1.0
            assert value == believed
        if checkpoint:
            keep, saved = since, believed
        if crash == 0:
            since, believed = keep, saved
    assert (held(s, since, keep) or 0.0) == believed


@settings(deadline=None, max_examples=2000)
@given(data=st.data())
def test_mutated_files_are_refused_or_equal(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    s = store(tmp_path_factory.getbasetemp() / "mutated")
    put(s, (1, 0), 1.0)
    path = s.folder / "1-0.safetensors"
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(content[: data.draw(st.integers(0, len(content)))]))
    s.recall = Recall((1, 0), None)
    try:
        assert s.get(0, (2, 0)) == {"head": torch.tensor([1.0])}
    except StateLost as error:
        assert "site-a" in str(error)
