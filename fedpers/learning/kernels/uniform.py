"""Uniform numbers for first weights: torch's bits, in a quarter of its time."""

import ctypes
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fedpers.learning.kernels.library import library

Ranges = Sequence[tuple[tuple[int, ...], float]]  # shapes, and bounds b of numbers in [-b, b)


def uniform(seeds: Sequence[int], ranges: Ranges) -> list[Tensor]:
    """For each range [N, *shape], of N seeds: as `uniform_` after `torch.manual_seed(seed)`; float32, CPU.

    From a seed one range is drawn after the other.
    """
    kernels = library()
    known = kernels is not None and _same_bits(kernels)
    return _by_kernel(kernels, seeds, ranges) if known else _by_torch(seeds, ranges)


def _by_torch(seeds: Sequence[int], ranges: Ranges) -> list[Tensor]:
    found = _empty(seeds, ranges)
    for n, seed in enumerate(seeds):
        rng = torch.Generator().manual_seed(seed)
        for stack, (_, bound) in zip(found, ranges, strict=True):
            stack[n].uniform_(-bound, bound, generator=rng)
    return found


def _by_kernel(kernels: Any, seeds: Sequence[int], ranges: Ranges) -> list[Tensor]:
    found, n = _empty(seeds, ranges), len(ranges)
    kernels.fedpers_uniform(
        (ctypes.c_uint32 * len(seeds))(*seeds),
        ctypes.c_long(len(seeds)),
        ctypes.c_long(n),
        (ctypes.c_long * n)(*(math.prod(shape) for shape, _ in ranges)),
        (ctypes.c_float * n)(*(bound for _, bound in ranges)),
        (ctypes.c_void_p * n)(*(t.data_ptr() for t in found)),
    )
    return found


def _empty(seeds: Sequence[int], ranges: Ranges) -> list[Tensor]:
    return [torch.empty(len(seeds), *shape, device="cpu") for shape, _ in ranges]


@lru_cache(maxsize=1)
def _same_bits(kernels: Any) -> bool:
    """Whether the kernel draws what this torch does, which rounds once or twice, as the processor lets it."""
    seeds, ranges = (2**31 - 2, 5), [((40, 50), 0.3), ((7,), 0.1)]
    pairs = zip(_by_kernel(kernels, seeds, ranges), _by_torch(seeds, ranges), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)
