"""Decoded sets on disk: written whole or not at all, and built again when damaged."""

import os

import numpy as np
import pytest

from fedpers.core.errors import DataError
from fedpers.datasets import cache


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """An empty cache for each test."""
    monkeypatch.setenv("FEDPERS_CACHE", str(tmp_path / "cache"))


def decode_once():
    calls = []

    def decode():
        calls.append(1)
        return {"x": np.arange(1000), "y": np.ones(3)}

    return calls, decode


def entry(folder):
    return [p for p in folder.iterdir() if p.name.startswith("set-")]


def test_cache_decodes_once_and_maps(tmp_path):
    source = tmp_path / "file"
    source.write_text("one")
    calls, decode = decode_once()
    for _ in range(2):
        arrays = cache.cached("set", tmp_path, [source], decode)
        assert isinstance(arrays["x"], np.memmap) and arrays["x"][-1] == 999
    assert len(calls) == 1
    source.write_text("another")  # a new source file: decoded again
    cache.cached("set", tmp_path, [source], decode)
    assert len(calls) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: os.truncate(folder / "x.npy", 200),
        lambda folder: (folder / "y.npy").unlink(),
        lambda folder: (folder / "index").unlink(),
        lambda folder: (folder / "x.npy").write_bytes(b"?" * (folder / "x.npy").stat().st_size),
    ],
)
def test_a_damaged_cache_is_built_again(tmp_path, damage):
    source = tmp_path / "file"
    source.write_text("one")
    calls, decode = decode_once()
    cache.cached("set", tmp_path, [source], decode)
    damage(entry(tmp_path / "cache")[0])
    assert cache.cached("set", tmp_path, [source], decode)["x"].tolist() == list(range(1000))
    assert len(calls) == 2
    assert len(list((tmp_path / "cache").iterdir())) == 1  # nothing is left lying about


def test_a_decoder_that_fails_leaves_no_entry(tmp_path):
    source = tmp_path / "file"
    source.write_text("one")

    def broken():
        raise DataError("no")

    with pytest.raises(DataError):
        cache.cached("set", tmp_path, [source], broken)
    assert not (tmp_path / "cache").exists() or not list((tmp_path / "cache").iterdir())


def test_cache_goes_beside_the_data_or_home(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDPERS_CACHE")
    assert cache.cache_root(tmp_path) == tmp_path / ".fedpers-cache"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert ".cache" in cache.cache_root(tmp_path).parts


def test_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("a file where a folder should be")
    monkeypatch.setenv("FEDPERS_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match="set FEDPERS_CACHE"):
        cache.cached("set", tmp_path, [tmp_path / "file"], decode_once()[1])


def test_two_writers_at_once_leave_one_entry(tmp_path):
    source = tmp_path / "file"
    source.write_text("one")

    def slow():
        """Meanwhile another process finishes the same entry."""
        cache.cached("set", tmp_path, [source], lambda: {"x": np.arange(3)})
        return {"x": np.arange(3)}

    assert cache.cached("set", tmp_path, [source], slow)["x"].tolist() == [0, 1, 2]
    assert len(list((tmp_path / "cache").iterdir())) == 1
