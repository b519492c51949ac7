"""What many streams draw in one call: NumPy's bits, in a tenth of its time."""

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedpers.core.compiled import pointer
from fedpers.core.rng import SEEDS, Stream
from fedpers.core.sums import library

PLACE = 6  # words that say where a stream is: see seeds.c


class Streams(NamedTuple):
    """Streams as a kernel sees them."""

    keys: np.ndarray  # [N, words]
    places: np.ndarray  # [N, PLACE] where they are, and after a call where it stopped


def integer_seeds(streams: Sequence[Stream]) -> list[int]:
    """`integer_seed()` of each stream."""
    known = _known(streams)
    return [s.integer_seed() for s in streams] if known is None else _integers(library(), known)


def uniform_each(streams: Sequence[Stream], size: int) -> np.ndarray:
    """[C, size] float32 `uniform(size)` of each stream."""
    known = _known(streams)
    if known is None:
        return np.stack([s.uniform(size).numpy() for s in streams])
    return _fractions(library(), known, size)


def shuffled_each(
    streams: Sequence[Stream],
    sizes: Sequence[int],
    batch_size: int,
    passes: int,
    steps: int,
    shape: tuple[int, int],
) -> Tensor:
    """[C, S, B] `shuffled` of each stream for so many samples, at least one; 0 beyond a stream's own steps.

    Args:
        shape: (S, B), what the largest takes.
    """
    found = torch.zeros(len(streams), *shape, dtype=torch.int64)
    how = (batch_size, passes, steps)
    known = _known(streams)
    if known is None:
        for row, stream, n in zip(found.numpy(), streams, sizes, strict=True):
            drawn = stream.shuffled(n, *how)
            row[: drawn.shape[0], : drawn.shape[1]] = drawn
    else:
        _batches(library(), known, sizes, how, found)
    return found


def _known(streams: Sequence[Stream]) -> Streams | None:
    """The streams, if the kernels can draw from each; what they draw moves them on."""
    plain = library() is not None and all([type(s) is Stream and not s.numpys for s in streams])
    if not plain or not _same_bits(library()):
        return None
    words = [word for s in streams for word in s.key]
    if min(words) < 0 or max(words) >= 2**32:  # which takes two words
        return None
    keys = np.array(words, dtype=np.uint32).reshape(len(streams), -1)
    places = np.zeros((len(keys), PLACE), dtype=np.uint64)
    for i, s in enumerate(streams):
        if s.place is not None:
            before, row = s.place
            places[i] = before[row]
        s.place = places, i
    return Streams(keys, places)


def _fresh(streams: Sequence[Stream]) -> Streams:
    keys = np.array([s.key for s in streams], dtype=np.uint32)
    return Streams(keys, np.zeros((len(keys), PLACE), dtype=np.uint64))


def _batches(
    kernels: Any, streams: Streams, sizes: Sequence[int], how: tuple[int, int, int], found: Tensor
) -> None:
    order, counts = np.empty(max(sizes), dtype=np.int64), np.array(sizes, dtype=np.int64)
    rest = map(ctypes.c_long, (*how, *found.shape[1:]))
    kernels.fedpers_draw_batches(*_told(streams), _at(counts), *rest, _at(order), pointer(found))


def _integers(kernels: Any, streams: Streams) -> list[int]:
    found = np.empty(len(streams.keys), dtype=np.int64)
    kernels.fedpers_draw_integers(*_told(streams), ctypes.c_uint32(SEEDS), _at(found))
    seeds: list[int] = found.tolist()
    return seeds


def _fractions(kernels: Any, streams: Streams, size: int) -> np.ndarray:
    found = np.empty((len(streams.keys), size), dtype=np.float32)
    kernels.fedpers_draw_fractions(*_told(streams), ctypes.c_long(size), _at(found))
    return found


def _told(streams: Streams) -> tuple[Any, ...]:
    """What all kernels are told first."""
    return _at(streams.keys), *map(ctypes.c_long, streams.keys.shape), _at(streams.places)


def _at(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


@lru_cache(maxsize=1)
def _same_bits(kernels: Any) -> bool:
    """Whether the kernels draw what this NumPy does, one after the other."""
    sizes, how = (1, 2, 19, 200), (20, 2, 0)
    streams = [Stream(*key) for key in ((0, 0, 0), (7, 0, 2**31), (2**32 - 1, 3, 12), (5, 1, 8))]
    seeds = [s.integer_seed() for s in streams]
    drawn = [s.shuffled(n, *how) for s, n in zip(streams, sizes, strict=True)]
    fractions = [s.uniform(9).numpy() for s in streams]
    ours, batches = _fresh(streams), torch.zeros(4, 20, 20, dtype=torch.int64)
    same = _integers(kernels, ours) == seeds
    _batches(kernels, ours, sizes, how, batches)
    rows = zip(batches.numpy(), drawn, strict=True)
    same &= all(np.array_equal(found[: w.shape[0], : w.shape[1]], w) for found, w in rows)
    return same and np.array_equal(_fractions(kernels, ours, 9), fractions)
