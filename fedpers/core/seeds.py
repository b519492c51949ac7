"""Seeds that many streams draw first, in one call: NumPy's bits, in a tenth of its time."""

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from fedpers.core.rng import SEEDS, Stream
from fedpers.core.sums import library


def integer_seeds(streams: Sequence[Stream]) -> list[int]:
    """`integer_seed()` of each stream."""
    kernels = library()
    fresh = all(type(s) is Stream and s.fresh for s in streams)
    if kernels is None or not fresh or not _same_bits(kernels):
        return [s.integer_seed() for s in streams]
    keys = [s.key for s in streams]
    if max(map(max, keys)) >= 2**32:
        return [s.integer_seed() for s in streams]
    for s in streams:
        s.skip_seed()
    return _by_kernel(kernels, np.array(keys, dtype=np.uint32))


def _by_kernel(kernels: Any, keys: np.ndarray) -> list[int]:
    found = np.empty(len(keys), dtype=np.int64)
    size, words = (ctypes.c_long(n) for n in keys.shape)
    high = ctypes.c_uint32(SEEDS)
    kernels.fedpers_first_integers(_at(keys), size, words, high, _at(found))
    seeds: list[int] = found.tolist()
    return seeds


def _at(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


@lru_cache(maxsize=1)
def _same_bits(kernels: Any) -> bool:
    """Whether the kernel draws what this NumPy does."""
    streams = [Stream(seed, t, k) for seed, t, k in ((0, 0, 0), (7, 0, 2**31), (2**32 - 1, 3, 12))]
    wanted = [s.integer_seed() for s in streams]
    return _by_kernel(kernels, np.array([s.key for s in streams], dtype=np.uint32)) == wanted
