"""Linear layers of networks that torch differentiates, such as those above large convolutions.

On batches of some dozens of rows torch's products reach a third of what a core can do.
"""

import ctypes
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedpers.core.compiled import pointer
from fedpers.core.scope import holding
from fedpers.learning.kernels.library import library

LEAST = 2**16  # weights of a layer: below, calls cost more than products
ROW = 16  # floats of the widest register, whole numbers of which the kernel reads
ROOM = 4  # rows that the kernel writes together
_once: ContextVar[bool] = ContextVar("once", default=False)


def differentiated_once(really: bool = True) -> AbstractContextManager[None]:
    """While this is open, `linear` may be a kernel, whose gradient has none; unless `really` is false."""
    return holding(_once, really)


def once() -> bool:
    """Whether `differentiated_once` is open."""
    return _once.get()


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`torch.nn.functional.linear`: x [n, M], weight [O, M], bias [O] to [n, O]."""
    if once() and _fits(x, weight, bias):
        out: Tensor = _Linear.apply(x, weight, bias)
        return out
    return F.linear(x, weight, bias)


def _fits(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    return (
        x.dim() == 2
        and len(x) > 0
        and x.shape[1] == weight.shape[1]
        and weight.numel() >= LEAST
        and weight.shape[1] % ROW == 0
        and all(t.is_cpu and t.dtype == torch.float32 for t in (x, weight, bias))
        and library() is not None
    )


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
        ctx.save_for_backward(x, weight)
        n, (outs, ins) = len(x), weight.shape
        y = torch.empty(-(-n // ROOM) * ROOM, outs)
        _call("fedpers_linear", (n, ins, outs), x, weight, bias, y)
        return y[:n]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        of_x = _mixed(d.T.contiguous(), weight) if ctx.needs_input_grad[0] else None
        of_weight = _mixed(d.contiguous(), x) if ctx.needs_input_grad[1] else None
        return of_x, of_weight, d.sum(0) if ctx.needs_input_grad[2] else None


def _mixed(a: Tensor, x: Tensor) -> Tensor:
    """a^T x, of [n, O] and [n, M]."""
    y = torch.empty(a.shape[1], x.shape[1])
    _call("fedpers_mixed", (len(a), *y.shape), a, x, y)
    return y


def _call(name: str, sides: tuple[int, ...], *tensors: Tensor) -> None:
    if getattr(library(), name)(*map(ctypes.c_long, sides), *map(pointer, tensors)):
        raise MemoryError("no memory for a minibatch")
