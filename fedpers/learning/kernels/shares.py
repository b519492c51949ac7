"""K models under a membership: their mixture, and the models after a training of it, in C: see shares.c."""

import ctypes
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from fedpers.core.vmap import on_stacks
from fedpers.learning.kernels import native
from fedpers.learning.kernels.dispatch import kernels_allowed
from fedpers.learning.kernels.library import library


def mixture_of(v: Tensor, c: Tensor) -> Tensor:
    """Σ_k c_k v_k of models v [K, ...] under a membership c [K]."""
    c = c.to(v)
    if not _known(v):
        return torch.tensordot(c, v, dims=1)

    def all_clients(v: Tensor, c: Tensor) -> list[Tensor]:
        found = torch.empty(len(v), *v.shape[2:])
        _call(library().fedpers_mixtures, v, c, found)
        return [found]

    return on_stacks(all_clients, v, c)[0]


def slopes_of(v: Tensor, g: Tensor) -> Tensor:
    """[K] ⟨v_k, g⟩ of models v [K, ...]: the derivatives in c of what has the gradient g at `mixture_of`."""
    if not _known(v):
        return v.flatten(1) @ g.flatten()

    def all_clients(v: Tensor, g: Tensor) -> list[Tensor]:
        found = torch.empty(v.shape[:2])
        _call(library().fedpers_slopes, v, g, found)
        return [found]

    return on_stacks(all_clients, v, g)[0]


def shared_out(v: Sequence[Tensor], c: Tensor, steps: Tensor, ends: Sequence[Tensor]) -> list[Tensor]:
    """Models after a training of their mixture by a kernel, and their momenta if they have any.

    Args:
        v: the models before it, [K, ...], and their momenta.
        c: [K] the membership.
        steps: [2, 2] what the steps make of (a model, its momentum) without gradients.
        ends: what they made of the mixture, and of its momentum.
    """

    def all_clients(c: Tensor, steps: Tensor, *both: Tensor) -> list[Tensor]:
        before, after = [_rows(t) for t in both[: len(v)]], [t.contiguous() for t in both[len(v) :]]
        found = [torch.empty(t.shape) for t in before]
        c, steps = c.contiguous(), steps.contiguous()
        library().fedpers_shares(
            *_sizes(before[0]),
            *(at for t in _two(before) for at in _stack(t)),
            native._pointer(c),
            native._pointer(steps),
            *(native._pointer(t) for pair in (after, found) for t in _two(pair)),
        )
        return found

    return list(on_stacks(all_clients, c.to(v[0]), steps.to(v[0]), *v, *ends))


def _known(v: Tensor) -> bool:
    return v.is_cpu and v.dtype == torch.float32 and kernels_allowed() and library() is not None


def _call(function: Any, v: Tensor, with_: Tensor, found: Tensor) -> None:
    v, with_ = _rows(v), with_.contiguous()
    function(*_sizes(v), *_stack(v), native._pointer(with_), native._pointer(found))


def _rows(stack: Tensor) -> Tensor:
    return cast(Tensor, native._rows(stack))  # it is there


def _two(given: Sequence[Tensor]) -> Sequence[Tensor | None]:
    return (*given, None)[:2]


def _sizes(stack: Tensor) -> list[ctypes.c_long]:
    """Clients, models of each, entries of a model."""
    return [ctypes.c_long(n) for n in (*stack.shape[:2], stack[0, 0].numel())]


def _stack(stack: Tensor | None) -> tuple[ctypes.c_void_p, ctypes.c_long]:
    return native._pointer(stack), ctypes.c_long(0 if stack is None else stack.stride(0))
