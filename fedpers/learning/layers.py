"""Layers without parameters of their own: a shape rule, torch's initialisation, a function of a dict.

No nn.Module takes part in the forward pass, so `torch.func.vmap` can run it for a stack of clients.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpers.core.data import Data
from fedpers.core.params import Params
from fedpers.core.rng import Stream
from fedpers.learning.convolution import convolve
from fedpers.learning.kernels.pooled import convolve_pooled

Shape = tuple[int, ...]
PIECE = 64  # images that go through convolutions together on a CPU


class MismatchError(ValueError):
    """A layer cannot take inputs of this shape; `build_model` adds the model's name."""


class Network(ABC):
    """The body of a model: everything before the last linear layer."""

    num_features: int
    alone: str = ""  # why clients run one by one; "": they may be stacked
    draws: bool = False  # whether it has Dropout
    activations: int = 0  # bytes a sample that a training pass keeps; 0: not known
    digest: str = ""  # sha256 over the constants; "" without any
    num_frozen: int = 0  # entries of parameters that are not trained
    tokens: bool = False  # inputs are numbers of tokens
    piecewise: bool = False  # many samples at once cost more than in turn, and give the same features
    softmax_head: bool = False  # the head's values pass ReLU and softmax before they are taken for logits

    @property
    def norms(self) -> frozenset[str]:
        """Names of the parameters of normalisation layers."""
        return frozenset()

    @property
    def constants(self) -> Params:
        """Frozen parameters and buffers that nothing changes: one copy a process, never sent or stored."""
        return {}

    @property
    def tracked(self) -> list[str]:
        """Names of the running statistics of BatchNorm."""
        return []

    def turn(self, data: Data | None, rng: Stream | None) -> AbstractContextManager[None]:
        """A context for all that one client does with the network; only modules use it."""
        return nullcontext()

    def statistics(self, params: Params, x: Tensor) -> Params:
        """Running statistics on a client's inputs x [n, ...], by name; only modules have some."""
        return {}

    @abstractmethod
    def init(self) -> Params:
        """Initial parameters, drawn from torch's global generator; a head of its own too, if it has one."""

    @abstractmethod
    def __call__(self, params: Params, x: Tensor) -> Tensor:
        """[n, ...] inputs to [n, M] features; other entries of `params` are ignored."""


def is_traced() -> bool:
    """Whether torch is tracing (export, ONNX), so that the number of samples is symbolic."""
    return torch.compiler.is_exporting() or torch.jit.is_tracing()


class Layer(ABC):
    """One layer of a stack; `kind` names the parameters of those that have some."""

    kind = ""

    def out_shape(self, shape: Shape) -> Shape:
        """The shape of one output, given that of one input."""
        return shape

    def module(self, shape: Shape) -> nn.Module:
        """An nn.Module whose parameters are this layer's initial ones."""
        return nn.Identity()

    @abstractmethod
    def __call__(self, params: Params, name: str, x: Tensor) -> Tensor:
        """Apply the layer to a batch x [n, ...]; its parameters start with `name`."""


@dataclass(frozen=True)
class Relu(Layer):
    """max(x, 0)."""

    def __call__(self, params: Params, name: str, x: Tensor) -> Tensor:
        return F.relu(x)


@dataclass(frozen=True)
class Flatten(Layer):
    """[n, ...] to [n, M]."""

    def out_shape(self, shape: Shape) -> Shape:
        return (math.prod(shape),)

    def __call__(self, params: Params, name: str, x: Tensor) -> Tensor:
        return x.flatten(1)


@dataclass(frozen=True)
class Dense(Layer):
    """A linear layer, [n, M] to [n, width]."""

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
    """A convolution with stride 1 and a square kernel on images [n, channels, height, width]."""

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
    """The maximum over windows of size x size."""

    size: int
    stride: int
    padding: int = 0

    def out_shape(self, shape: Shape) -> Shape:
        return slide(image(shape), self.size, self.stride, self.padding)

    def __call__(self, params: Params, name: str, x: Tensor) -> Tensor:
        return F.max_pool2d(x, self.size, self.stride, self.padding)


@dataclass(frozen=True)
class Pooled(Layer):
    """A convolution, the maxima of its outputs and maybe ReLU as one layer, as the C kernel takes them."""

    conv: Conv
    pool: MaxPool
    relu: bool

    def __call__(self, params: Params, name: str, x: Tensor) -> Tensor:
        weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
        maxima = (self.pool.size, self.pool.stride, self.pool.padding)
        found = convolve_pooled(x, weight, bias, self.conv.padding, maxima, self.relu)
        if found is not None:
            return found
        x = self.pool(params, "", self.conv(params, name, x))
        return F.relu(x) if self.relu else x


def image(shape: Shape) -> tuple[int, int, int]:
    """`shape` as (channels, height, width).

    Raises:
        MismatchError: the inputs are no images.
    """
    if len(shape) != 3:
        raise MismatchError("it needs images of shape (channels, height, width)")
    return shape[0], shape[1], shape[2]


def slide(shape: tuple[int, int, int], size: int, stride: int, padding: int) -> Shape:
    """The shape after a sliding window of size x size.

    Raises:
        MismatchError: the images are smaller than a window.
    """
    channels, *sides = shape
    after = [(side + 2 * padding - size) // stride + 1 for side in sides]
    if min(after) < 1:
        seen = "x".join(str(side) for side in sides)
        raise MismatchError(f"the images are too small: a {size}x{size} window meets {seen} pixels")
    return (channels, *after)


@dataclass(frozen=True)
class Stack(Network):
    """Layers in sequence; parameters are named conv1.weight, conv1.bias, dense1.weight and so on."""

    steps: tuple[tuple[str, Layer, Shape], ...]  # name, layer, shape of its input
    num_features: int

    def init(self) -> Params:
        return {
            f"{name}.{key}": value
            for name, layer, shape in self.steps
            for key, value in fresh(layer.module(shape)).items()
        }

    @property
    def piecewise(self) -> bool:  # type: ignore[override]
        kinds = [type(layer) for _, layer, _ in self.steps]  # another one may look at all samples at once
        return Conv in kinds and {*kinds} <= {Conv, Dense, Flatten, MaxPool, Relu}

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        if not self.piecewise or is_traced() or torch.is_grad_enabled() or not x.is_cpu or len(x) <= PIECE:
            return self._through(params, x)
        last = {
            k: v.contiguous(memory_format=torch.channels_last) if v.dim() == 4 else v
            for k, v in params.items()
        }
        return torch.cat([self._through(last, part) for part in x.split(PIECE)])  # see pieces.py

    def _through(self, params: Params, x: Tensor) -> Tensor:
        for name, layer in self._order:
            x = layer(params, name, x)
        return x

    @cached_property
    def _order(self) -> list[tuple[str, Layer]]:
        """The layers in order, but convolutions together with their maxima: the same numbers."""
        order = [(name, layer) for name, layer, _ in self.steps]
        for i in range(len(order) - 1, -1, -1):  # from the last, since they become fewer
            (name, conv), *after = order[i : i + 3]
            pools = [layer for _, layer in after if type(layer) is MaxPool]
            if type(conv) is Conv and pools and type(after[0][1]) in (Relu, MaxPool):
                relu = any(type(layer) is Relu for _, layer in after)
                taken = 2 + relu
                order[i : i + taken] = [(name, Pooled(conv, pools[0], relu))]
        return order


class SquashedStack(Stack):
    """A stack whose model ends as FedSoft's code does: linear, ReLU, softmax, then cross entropy on that."""

    softmax_head = True


def stack(shape: Shape, *layers: Layer) -> Stack:
    """A stack for inputs of `shape` [...]; the last layer must give flat features [n, M].

    Raises:
        MismatchError: a layer cannot take the shape that comes to it.
    """
    steps: list[tuple[str, Layer, Shape]] = []
    seen: Counter[str] = Counter()
    for layer in layers:
        seen[layer.kind] += 1
        steps.append((f"{layer.kind}{seen[layer.kind]}", layer, shape))
        shape = layer.out_shape(shape)
    return Stack(tuple(steps), shape[0])


def fresh(module: nn.Module) -> Params:
    """The parameters of a module by name, detached."""
    return {name: p.detach() for name, p in module.named_parameters()}


def linear_start(num_features: int, num_outputs: int, bias: bool, seeds: Sequence[int]) -> Params:
    """The parameters of a new nn.Linear after `torch.manual_seed(seed)`, weight [N, K, M] and bias [N, K].

    Without a module: each client that is visited first draws a head.
    """
    scale = nn.init.calculate_gain("leaky_relu", math.sqrt(5)) / math.sqrt(num_features)
    bound = math.sqrt(3.0) * scale  # 1 / √M, rounded as torch's Kaiming start is
    shapes, bounds = ((num_outputs, num_features), (num_outputs,)), (bound, 1 / math.sqrt(num_features))
    found = [torch.empty(len(seeds), *shape, device="cpu") for shape in shapes[: 1 + bias]]
    for n, seed in enumerate(seeds):
        rng = torch.Generator().manual_seed(seed)
        for stack, most in zip(found, bounds, strict=False):
            stack[n].uniform_(-most, most, generator=rng)
    return dict(zip(("weight", "bias"), found, strict=False))
