"""K models under a membership: their mixture, and the models after a training of it, in C: see shares.c."""

import ctypes
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedpers.core.compiled import hops, longs, pointer, pointers, with_whole_rows
from fedpers.core.vmap import on_stacks
from fedpers.learning.kernels.dispatch import kernels_allowed
from fedpers.learning.kernels.library import library

Layers = Sequence[Tensor]  # of K models, [K, ...] each


def mixtures_of(v: Layers, c: Tensor) -> list[Tensor]:
    """Σ_k c_k v_k of each layer of models under a membership c [K]."""
    if not _known(v):
        return [torch.tensordot(c.to(t), t, dims=1) for t in v]
    return list(on_stacks(_mixtures, c.to(v[0]), *v))


def _mixtures(c: Tensor, *v: Tensor) -> list[Tensor]:
    """`mixtures_of` of all clients."""
    rows, c = _whole(v), c.contiguous()
    found = [torch.empty(len(t), *t.shape[2:]) for t in v]
    library().fedpers_mixtures(*_sizes(rows), *_stacks(rows), pointer(c), pointers(found))
    return found


def slopes_of(v: Layers, g: Layers) -> Tensor:
    """[K] Σ ⟨v_k, g⟩ over layers: the derivatives in c of what has the gradients g at `mixtures_of`."""
    if not _known(v):
        return torch.stack([t.flatten(1) @ h.flatten() for t, h in zip(v, g, strict=True)]).sum(0)
    return on_stacks(_slopes, *v, *g)[0]


def _slopes(*both: Tensor) -> list[Tensor]:
    """`slopes_of` of all clients."""
    v, g = _kinds(both, 2)
    v, g, found = _whole(v), [t.contiguous() for t in g], torch.empty(v[0].shape[:2])
    library().fedpers_slopes(*_sizes(v), *_stacks(v), pointers(g), pointer(found))
    return [found]


def shared_out(v: Sequence[Layers], c: Tensor, steps: Tensor, ends: Sequence[Layers]) -> list[list[Tensor]]:
    """Models after a training of their mixture by a kernel, and their momenta if they have any.

    Args:
        v: the layers of the models before it, and those of their momenta.
        c: [K] the membership.
        steps: [2, 2] what the steps make of (a model, its momentum) without gradients.
        ends: what they made of the mixture, and of its momentum.
    """
    kinds, like = len(v), v[0][0]
    layers = [t for kind in (*v, *ends) for t in kind]
    moved = on_stacks(partial(_shares, kinds), c.to(like), steps.to(like), *layers)
    return [list(kind) for kind in _kinds(moved, kinds)]


def _shares(kinds: int, c: Tensor, steps: Tensor, *both: Tensor) -> list[Tensor]:
    """`shared_out` of all clients."""
    given, ended = _kinds(both, 2)
    before, after = _kinds(_whole(given), kinds), _kinds([t.contiguous() for t in ended], kinds)
    found = _kinds([torch.empty(t.shape) for t in given], kinds)
    c, steps = c.contiguous(), steps.contiguous()
    library().fedpers_shares(
        *_sizes(before[0]),
        *(at for kind in _two(before) for at in _stacks(kind)),
        pointer(c),
        pointer(steps),
        *(pointers(kind) if kind else None for pair in (after, found) for kind in _two(pair)),
    )
    return [t for kind in found for t in kind]


def _known(v: Layers) -> bool:
    return (
        all(t.is_cpu and t.dtype == torch.float32 for t in v) and kernels_allowed() and library() is not None
    )


def _whole(stacks: Layers) -> Layers:
    return [with_whole_rows(t) for t in stacks]


def _kinds(tensors: Layers, count: int) -> list[Layers]:
    """So many tensors as `count` lists of equal lengths."""
    size = len(tensors) // count
    return [tensors[i * size : (i + 1) * size] for i in range(count)]


def _two(given: Sequence[Layers]) -> Sequence[Layers]:
    return (*given, ())[:2]


def _sizes(v: Layers) -> tuple[Any, ...]:
    """Clients, models of each, layers and the entries of each."""
    rows = [ctypes.c_long(n) for n in (*v[0].shape[:2], len(v))]
    return *rows, longs([t[0, 0].numel() for t in v])


def _stacks(v: Layers) -> tuple[Any, Any]:
    return (pointers(v), hops(v)) if v else (None, None)
