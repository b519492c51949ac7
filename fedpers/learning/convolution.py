"""Convolutions as matrix products, for stacks of clients with kernels of their own.

vmap turns a convolution with one kernel a client into a grouped one, which cuDNN runs slowly. As the
product of the kernel with all windows of the input it is one batched matrix product for the stack.
"""

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpers.core.scope import holding

Way = Literal["grouped", "products", "by shape"]
WIDE, LARGE = 64, 8  # channels and sides of images from which cuDNN's grouped convolutions in TF32 are fast
_way: ContextVar[Way] = ContextVar("way", default="grouped")
_forbidden: ContextVar[bool] = ContextVar("forbidden", default=False)


class ConvolutionForbidden(Exception):
    """torch was asked for a convolution where only the C kernels may compute one."""


def forbid_torch_convolutions(really: bool = True) -> AbstractContextManager[None]:
    """While this is open, `convolve` raises ConvolutionForbidden, unless `really` is false."""
    return holding(_forbidden, really)


def convolutions(way: Way) -> AbstractContextManager[None]:
    """While this is open, `convolve` uses this way; "by shape" chooses the faster one for TF32."""
    return holding(_way, way)


def current_way() -> Way:
    """The way that `convolve` uses now."""
    return _way.get()


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, stride: int = 1) -> Tensor:
    """A convolution: x [B, C, H, W], weight [O, C, k, k], bias [O] or None to [B, O, H', W'].

    Raises:
        ConvolutionForbidden: torch may not make it here.
    """
    if _forbidden.get():
        raise ConvolutionForbidden
    if stride == 1 and _as_product(x, weight):
        out: Tensor = _Products.apply(x, weight, bias, padding)
        return out
    return F.conv2d(x, weight, bias, stride, padding)


def _as_product(x: Tensor, weight: Tensor) -> bool:
    way = _way.get()
    suits = weight.shape[1] < WIDE or x.shape[-1] < LARGE
    return way == "products" or (way == "by shape" and suits)


class Convolution(nn.Conv2d):
    """A layer of a module whose square kernel goes through `convolve`."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] to [B, O, H', W']."""
        assert not isinstance(self.padding, str)
        return convolve(x, self.weight, self.bias, self.padding[0], self.stride[0])


def convolving(module: nn.Module) -> nn.Module:
    """The module, its convolutions going through `convolve`: they must have square kernels and no groups."""
    for child in module.modules():
        if type(child) is nn.Conv2d:
            child.__class__ = Convolution  # a new one would draw numbers
    return module


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
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
        out = _product(x, weight, padding)
        return (out if bias is None else out + bias[:, None, None, None]).transpose(0, 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, weight, bias, ctx.padding = inputs
        ctx.bias = bias is not None
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
        return of_x, of_weight, flat.sum(1) if ctx.bias else None, None
