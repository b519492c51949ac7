"""Convolutions as matrix products, for stacks of clients with kernels of their own.

vmap turns a convolution with one kernel a client into a grouped one, which cuDNN runs slowly. As the
product of the kernel with all windows of the input it is one batched matrix product for the stack.
"""

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedpers.core.scope import holding

_products: ContextVar[bool] = ContextVar("products", default=False)
_barred: ContextVar[bool] = ContextVar("barred", default=False)


class ConvolutionBarred(Exception):
    """A convolution by torch was asked for where only the kernels may make one."""


def barred(really: bool = True) -> AbstractContextManager[None]:
    """While this is open, `convolve` raises ConvolutionBarred, unless `really` is false."""
    return holding(_barred, really)


def as_products(wanted: bool = True) -> AbstractContextManager[None]:
    """While this is open, `convolve` uses matrix products, unless `wanted` is false."""
    return holding(_products, wanted)


def convolve(x: Tensor, weight: Tensor, bias: Tensor, padding: int) -> Tensor:
    """A convolution with stride 1: x [B, C, H, W], weight [O, C, k, k], bias [O] to [B, O, H', W'].

    Raises:
        ConvolutionBarred: torch may not make it here.
    """
    if _barred.get():
        raise ConvolutionBarred
    if _products.get():
        out: Tensor = _Products.apply(x, weight, bias, padding)
        return out
    return F.conv2d(x, weight, bias, padding=padding)


def _windows(x: Tensor, size: int, padding: int) -> Tensor:
    """All windows [C, k, k, B, H', W'] of an input [B, C, H, W]."""
    x = F.pad(x, (padding,) * 4) if padding else x
    return x.unfold(2, size, 1).unfold(3, size, 1).permute(1, 4, 5, 0, 2, 3)


def _product(x: Tensor, weight: Tensor, padding: int) -> Tensor:
    """The convolution without its bias, [O, B, H', W']."""
    windows = _windows(x, weight.shape[-1], padding)
    sides = windows.shape[3:]
    return (weight.flatten(1) @ windows.flatten(3).flatten(0, 2)).unflatten(1, sides)


class _Products(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, padding: int) -> Tensor:
        return (_product(x, weight, padding) + bias[:, None, None, None]).transpose(0, 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, weight, _, ctx.padding = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        size = weight.shape[-1]
        windows = _windows(x, size, ctx.padding).flatten(3).flatten(0, 2)
        flat = g.transpose(0, 1).flatten(1)
        of_weight = (flat @ windows.T).view(weight.shape)
        of_x = None
        if ctx.needs_input_grad[0]:
            turned = weight.flip((2, 3)).transpose(0, 1)
            of_x = _product(g, turned, size - 1 - ctx.padding).transpose(0, 1)
        return of_x, of_weight, flat.sum(1), None
