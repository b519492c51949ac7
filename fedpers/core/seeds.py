"""What many streams draw in one call: NumPy's bits, in a tenth of its time."""

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedpers.core.compiled import longs, pointer
from fedpers.core.rng import PLACE, SEEDS, Stream
from fedpers.core.sums import library


class Streams(NamedTuple):
    """Streams in the form that the kernels read."""

    number: int
    keys: Any  # of each so many words, in C's memory
    places: Any  # of each `PLACE` words: where it is, and after a call where that stopped


def integer_seeds(streams: Sequence[Stream]) -> list[int]:
    """`integer_seed()` of each stream."""
    known = _known(streams)
    return [s.integer_seed() for s in streams] if known is None else _integers(library(), known)


def uniform_each(streams: Sequence[Stream], size: int) -> Tensor:
    """[C, size] float32 `uniform(size)` of each stream."""
    known = _known(streams)
    if known is None:
        return torch.stack([s.uniform(size) for s in streams])
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
    how = (batch_size, passes, steps)
    known = _known(streams)
    if known is not None:
        return _batches(library(), known, sizes, how, shape)
    found = torch.zeros(len(streams), *shape, dtype=torch.int64)
    for row, stream, n in zip(found.numpy(), streams, sizes, strict=True):
        drawn = stream.shuffled(n, *how)
        row[: drawn.shape[0], : drawn.shape[1]] = drawn
    return found


def _known(streams: Sequence[Stream]) -> Streams | None:
    """The streams, if the kernels can draw from each; what they draw moves them on."""
    plain = library() is not None and all([type(s) is Stream and not s.numpys for s in streams])
    if not plain or not _same_bits(library()):
        return None
    words = _words(streams)
    return None if min(words) < 0 or max(words) >= 2**32 else _taken_up(streams, words)


def _words(streams: Sequence[Stream]) -> list[int]:
    """The numbers of all keys; the kernels know those of 32 bits only, one word each."""
    return [word for s in streams for word in s.key]


def _taken_up(streams: Sequence[Stream], words: Sequence[int]) -> Streams:
    keys, (last, _) = (ctypes.c_uint32 * len(words))(*words), streams[0].place or (None, 0)
    together = last is not None and len(last) == PLACE * len(streams)
    if together and all([s.place == (last, i) for i, s in enumerate(streams)]):
        return Streams(len(streams), keys, last)  # as they drew before: moved on where they are
    places = (ctypes.c_uint64 * (PLACE * len(streams)))()
    for i, s in enumerate(streams):
        if s.place is not None:
            before, row = s.place
            places[PLACE * i : PLACE * (i + 1)] = before[PLACE * row : PLACE * (row + 1)]
        s.place = places, i
    return Streams(len(streams), keys, places)


def _batches(
    kernels: Any, streams: Streams, sizes: Sequence[int], how: tuple[int, int, int], shape: tuple[int, int]
) -> Tensor:
    found = torch.empty(streams.number, *shape, dtype=torch.int64)
    order = torch.empty(max(sizes), dtype=torch.int64)
    rest = map(ctypes.c_long, (*how, *shape))
    kernels.fedpers_draw_batches(*_told(streams), longs(sizes), *rest, pointer(order), pointer(found))
    return found


def _integers(kernels: Any, streams: Streams) -> list[int]:
    found = (ctypes.c_int64 * streams.number)()
    kernels.fedpers_draw_integers(*_told(streams), ctypes.c_uint32(SEEDS), found)
    return list(found)


def _fractions(kernels: Any, streams: Streams, size: int) -> Tensor:
    found = torch.empty(streams.number, size)
    kernels.fedpers_draw_fractions(*_told(streams), ctypes.c_long(size), pointer(found))
    return found


def _told(streams: Streams) -> tuple[Any, ...]:
    """The first arguments of all kernels."""
    number, keys, places = streams
    return keys, ctypes.c_long(number), ctypes.c_long(len(keys) // number), places


@lru_cache(maxsize=1)
def _same_bits(kernels: Any) -> bool:
    """Whether the kernels draw what this NumPy does, one after the other."""
    keys = ((0, 0, 0), (7, 0, 2**31), (2**32 - 1, 3, 12), (5, 1, 8))
    sizes, how = (1, 2, 19, 200), (20, 2, 0)
    streams, others = ([Stream(*key) for key in keys] for _ in range(2))
    ours = _taken_up(others, _words(others))
    same = _integers(kernels, ours) == [s.integer_seed() for s in streams]
    batches = _batches(kernels, ours, sizes, how, (20, 20)).numpy()
    for found, stream, n in zip(batches, streams, sizes, strict=True):
        drawn = stream.shuffled(n, *how)
        same &= np.array_equal(found[: drawn.shape[0], : drawn.shape[1]], drawn)
    return same and torch.equal(_fractions(kernels, ours, 9), torch.stack([s.uniform(9) for s in streams]))
