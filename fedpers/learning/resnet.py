"""ResNet-18 with group normalisation, which has no running statistics: parameters are all its state."""

from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedpers.core.params import Params
from fedpers.core.torchvision import import_torchvision
from fedpers.learning.convolution import convolving
from fedpers.learning.layers import Network, fresh

# kernel, stride and padding of the first layer
STEMS = {"small": (3, 1, 1), "imagenet": (7, 2, 3)}


@dataclass(frozen=True)
class ResNet18(Network):
    """torchvision's ResNet-18 without its last layer; the first layer fits the images."""

    channels: int
    stem: str = "small"
    groups: int = 2
    num_features: int = 512
    skeleton: nn.Module = field(init=False, repr=False, compare=False)  # shapes only, no numbers

    def __post_init__(self) -> None:
        with torch.device("meta"):
            object.__setattr__(self, "skeleton", convolving(self.module()))

    def module(self) -> nn.Module:
        """A new nn.Module, initialised from torch's global generator."""
        resnet18 = import_torchvision().models.resnet18
        net: nn.Module = resnet18(num_classes=1, norm_layer=partial(nn.GroupNorm, self.groups))
        kernel, stride, padding = STEMS[self.stem]
        net.conv1 = nn.Conv2d(self.channels, 64, kernel, stride, padding, bias=False)
        nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
        if self.stem == "small":
            net.maxpool = nn.Identity()
        net.fc = nn.Identity()
        return net

    @property
    def norms(self) -> frozenset[str]:
        """Names of the parameters of group normalisation."""
        layers = self.skeleton.named_modules()
        return frozenset(
            f"{place}.{name}"
            for place, layer in layers
            if isinstance(layer, nn.GroupNorm)
            for name, _ in layer.named_parameters()
        )

    def init(self) -> Params:
        return fresh(self.module())

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        own = {name: params[name] for name, _ in self.skeleton.named_parameters()}
        features: Tensor = functional_call(self.skeleton, own, (x,))
        return features
