"""Convolutions whose outputs go into maxima, in networks that torch differentiates.

Of each window only the largest output has a derivative: most of what dense products multiply on the way back
is zero. Forward it is oneDNN's convolution.
"""

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedpers.core.compiled import longs, pointer
from fedpers.core.scope import holding
from fedpers.learning.kernels.library import library

Maxima = tuple[int, int, int]  # a window's side, from one to the next, padding
_once: ContextVar[bool] = ContextVar("once", default=False)


def differentiated_once(really: bool = True) -> AbstractContextManager[None]:
    """While this is open, the kernel may be used, whose gradient has none; unless `really` is false."""
    return holding(_once, really)


def convolve_pooled(
    x: Tensor, weight: Tensor, bias: Tensor, padding: int, maxima: Maxima, relu: bool
) -> Tensor | None:
    """Maxima of a convolution of stride 1, then ReLU or not; None where the kernel is not for it.

    Args:
        x: [B, C, H, W].
        weight: [O, C, k, k].
        bias: [O].
    """
    if not _once.get() or library() is None or not _fits(x, weight, bias, maxima):
        return None
    out: Tensor = _Pooled.apply(x, weight, bias, padding, maxima, relu)
    return out


def _fits(x: Tensor, weight: Tensor, bias: Tensor, maxima: Maxima) -> bool:
    return (
        maxima[1] > 1  # windows that are not apart leave too few zeros
        and 2 * maxima[2] <= maxima[0]  # else torch says what is wrong
        and x.dim() == 4
        and len(x) > 0
        and x.shape[1] == weight.shape[1]
        and all(t.is_cpu and t.dtype == torch.float32 for t in (x, weight, bias))
    )


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, padding: int, maxima: Maxima, relu: bool
    ) -> Tensor:
        x, weight = _last(x), _last(weight)
        z = _last(F.conv2d(x, weight, bias, padding=padding))
        sides = [(side + 2 * maxima[2] - maxima[0]) // maxima[1] + 1 for side in z.shape[2:]]
        y = torch.empty(len(x), *sides, len(weight))
        at = torch.empty(y.shape, dtype=torch.int32)
        ctx.layers = (len(x), *x.shape[1:], *weight.shape[::3], padding, *maxima, int(relu))
        ctx.save_for_backward(x, weight, at)
        library().fedpers_pool(longs(ctx.layers), *map(pointer, (z, y, at)))
        return y.permute(0, 3, 1, 2)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d: Tensor) -> Any:
        x, weight, at = ctx.saved_tensors
        d = _last(d)
        g, bias = torch.empty_like(weight), torch.empty(len(weight))
        dx = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        places = map(pointer, (x, weight, at, d, g, bias, dx))
        if library().fedpers_unpool(longs(ctx.layers), *places):
            raise MemoryError("no memory for a minibatch")
        return dx, g, bias, None, None, None


def _last(t: Tensor) -> Tensor:
    return t.contiguous(memory_format=torch.channels_last)
