"""Layers as descriptions: a shape rule, torch's own initialisation, a pure function of a dict.

A stack of them needs no nn.Module when it runs, so `torch.func.vmap` can stack clients over it.
"""

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor, nn

from fedpers.core.params import Params
from fedpers.learning.convolution import convolve

Shape = tuple[int, ...]


class MismatchError(ValueError):
    """A layer cannot take inputs of this shape; `build_model` says which model that was."""


class Network(Protocol):
    """The body of a model: everything before the last linear layer."""

    @property
    def num_features(self) -> int: ...

    def init(self) -> Params:
        """Fresh parameters, drawn from torch's global generator."""
        ...

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        """[n, ...] inputs to [n, M] features; other entries of `params` are ignored."""
        ...


class Layer(ABC):
    """One step of a stack. Most have no parameters; those that do have a `kind` to be named by."""

    kind = ""

    def out_shape(self, shape: Shape) -> Shape:
        """The shape of one output, from that of one input."""
        return shape

    def module(self, shape: Shape) -> nn.Module:
        """The nn.Module whose fresh parameters this layer starts from."""
        return nn.Identity()

    @abstractmethod
    def __call__(self, params: Params, name: str, x: Tensor) -> Tensor:
        """Apply the layer that is called `name` in `params`."""


@dataclass(frozen=True)
class Relu(Layer):
    """max(x, 0)."""

    def __call__(self, params: Params, name: str, x: Tensor) -> Tensor:
        return F.relu(x)


@dataclass(frozen=True)
class Flatten(Layer):
    """[n, ...] to [n, M]."""

    def out_shape(self, shape: Shape) -> Shape:
        size = 1
        for side in shape:
            size *= side
        return (size,)

    def __call__(self, params: Params, name: str, x: Tensor) -> Tensor:
        return x.flatten(1)


@dataclass(frozen=True)
class Dense(Layer):
    """A linear layer on flat inputs."""

    width: int
    kind = "dense"

    def out_shape(self, shape: Shape) -> Shape:
        return (self.width,)

    def module(self, shape: Shape) -> nn.Module:
        return nn.Linear(shape[0], self.width)

    def __call__(self, params: Params, name: str, x: Tensor) -> Tensor:
        return F.linear(x, params[f"{name}.weight"], params[f"{name}.bias"])


@dataclass(frozen=True)
class Conv(Layer):
    """A convolution with stride 1 on images [channels, height, width]."""

    channels: int
    kernel: int
    padding: int
    kind = "conv"

    def out_shape(self, shape: Shape) -> Shape:
        _, height, width = image(shape)
        return slide((self.channels, height, width), self.kernel, 1, self.padding)

    def module(self, shape: Shape) -> nn.Module:
        return nn.Conv2d(shape[0], self.channels, self.kernel, padding=self.padding)

    def __call__(self, params: Params, name: str, x: Tensor) -> Tensor:
        return convolve(x, params[f"{name}.weight"], params[f"{name}.bias"], self.padding)


@dataclass(frozen=True)
class MaxPool(Layer):
    """The maximum over windows."""

    size: int
    stride: int
    padding: int = 0

    def out_shape(self, shape: Shape) -> Shape:
        return slide(image(shape), self.size, self.stride, self.padding)

    def __call__(self, params: Params, name: str, x: Tensor) -> Tensor:
        return F.max_pool2d(x, self.size, self.stride, self.padding)


def image(shape: Shape) -> tuple[int, int, int]:
    """`shape` as (channels, height, width), or MismatchError."""
    if len(shape) != 3:
        raise MismatchError("it needs images of shape (channels, height, width)")
    return shape[0], shape[1], shape[2]


def slide(shape: tuple[int, int, int], size: int, stride: int, padding: int) -> Shape:
    """The shape after a sliding window of size x size, or MismatchError."""
    channels, *sides = shape
    after = [(side + 2 * padding - size) // stride + 1 for side in sides]
    if min(after) < 1:
        seen = "x".join(str(side) for side in sides)
        raise MismatchError(f"the images are too small: a {size}x{size} window meets {seen} pixels")
    return (channels, *after)


@dataclass(frozen=True)
class Stack:
    """Layers one after the other; parameters are called conv1.weight, conv1.bias, dense1.weight."""

    steps: tuple[tuple[str, Layer, Shape], ...]  # name, layer, shape of its input
    num_features: int

    def init(self) -> Params:
        return {
            f"{name}.{key}": value
            for name, layer, shape in self.steps
            for key, value in fresh(layer.module(shape)).items()
        }

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        for name, layer, _ in self.steps:
            x = layer(params, name, x)
        return x


def stack(shape: Shape, *layers: Layer) -> Stack:
    """Put layers on inputs of `shape`; the last must give flat features.

    Raises:
        MismatchError: a layer cannot take what comes to it.
    """
    steps: list[tuple[str, Layer, Shape]] = []
    seen: Counter[str] = Counter()
    for layer in layers:
        seen[layer.kind] += 1
        steps.append((f"{layer.kind}{seen[layer.kind]}", layer, shape))
        shape = layer.out_shape(shape)
    return Stack(tuple(steps), shape[0])


def fresh(module: nn.Module) -> Params:
    """The parameters of a module as a plain dict."""
    return {name: p.detach() for name, p in module.named_parameters()}
