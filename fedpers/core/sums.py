"""Sums and distances of many tensors of one shape in C, see sums.c; None where there is no kernel."""

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedpers.core.compiled import compiled
from fedpers.core.vmap import unwrapped


def sums(items: Sequence[Tensor], weights: Tensor) -> Tensor | None:
    """[R, ...] Σ_s weights[r, s]·items[s], summed in float64 in the order of items.

    Args:
        items: S tensors.
        weights: [R, S] float64.
    """
    if not _known(items):
        return None
    weights = weights.contiguous()
    found = torch.empty(len(weights), *items[0].shape)
    rows = found.unbind(0)
    library().fedpers_sums(*_longs(*weights.shape, items[0].numel()), _all(items), _at(weights), _all(rows))
    return found


def distances(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor | None:
    """[R, S] float64 ‖a_r - b_s‖², to some 1e-7 of each: differences are float32, their sum float64."""
    if not _known([*a, *b]):
        return None
    found = torch.zeros(len(a), len(b), dtype=torch.float64)
    library().fedpers_distances(*_longs(*found.shape, a[0].numel()), _all(a), _all(b), _at(found))
    return found


@lru_cache(maxsize=1)
def library() -> Any:
    """The compiled kernels; None without a compiler, or if they are switched off."""
    return compiled([Path(__file__).with_name(f"{name}.c") for name in ("sums", "seeds")])


def _known(tensors: Sequence[Tensor]) -> bool:
    """Whether all are plain float32 in the CPU's memory, of one shape, and nobody differentiates."""
    shape = tensors[0].shape
    plain = all(t.is_cpu and t.dtype == torch.float32 and t.is_contiguous() for t in tensors)
    alike = all(t.shape == shape and not t.requires_grad for t in tensors)
    return plain and alike and unwrapped() and library() is not None


def _longs(*values: int) -> list[ctypes.c_long]:
    return [ctypes.c_long(v) for v in values]


def _at(t: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(t.data_ptr())


def _all(tensors: Sequence[Tensor]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*[t.data_ptr() for t in tensors])
