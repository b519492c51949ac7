"""Gradients of single samples, as they are stored: of dense networks by their factors.

The gradient in a layer's weight is d h', h the layer's inputs for that sample and d the derivative of its
loss in the layer's outputs. So of a hundred thousand numbers a few hundred are kept, of the first layer d
alone.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpers.core.data import Data
from fedpers.core.params import Params
from fedpers.learning.gradients import derivative, model_gradient
from fedpers.learning.kernels.dispatch import of_model_alone
from fedpers.learning.kernels.plan import layers_of
from fedpers.learning.model import Model


class SampleGradients(ABC):
    """How gradients of one sample each are kept: dicts of tensors [n, ...], a row a sample."""

    @abstractmethod
    def zeros(self, params: Params, n: int) -> Params:
        """What is kept of n gradients that are 0."""

    @abstractmethod
    def take(self, params: Params, sample: Data) -> Params:
        """What is kept of the gradient of one sample, of one row."""

    @abstractmethod
    def difference(self, new: Params, old: Params, sample: Data) -> Params:
        """One gradient of the sample less another, of the names and shapes of the parameters."""


@dataclass(frozen=True)
class Whole(SampleGradients):
    """Any model's: every number is kept."""

    model: Model

    def zeros(self, params: Params, n: int) -> Params:
        """n times the parameters' sizes."""
        return {k: v.new_zeros(n, *v.shape) for k, v in params.items()}

    def take(self, params: Params, sample: Data) -> Params:
        """The gradient."""
        return {k: g[None] for k, g in model_gradient(self.model, params, sample).items()}

    def difference(self, new: Params, old: Params, sample: Data) -> Params:
        """Number by number."""
        return {k: new[k][0] - old[k][0] for k in new}


@dataclass(frozen=True)
class Factors(SampleGradients):
    """Of a dense network: layer.d [n, outs] and layer.h [n, ins]; the first layer's h is the sample."""

    model: Model
    layers: tuple[str, ...]  # prefixes of the parameters' names, the head last

    def zeros(self, params: Params, n: int) -> Params:
        """Both factors are 0."""
        sizes = {k: params[f"{k}.weight"].shape for k in self.layers}
        like = params[f"{self.layers[0]}.weight"]
        found = {f"{k}.d": like.new_zeros(n, outs) for k, (outs, _) in sizes.items()}
        return found | {f"{k}.h": like.new_zeros(n, sizes[k][1]) for k in self.layers[1:]}

    def take(self, params: Params, sample: Data) -> Params:
        """One pass forward and one backward."""
        h, inputs, found = sample.x.flatten(1), [], dict[str, Tensor]()
        for k in self.layers:
            inputs.append(h)
            z = h @ params[f"{k}.weight"].mT
            z = z + params[f"{k}.bias"] if f"{k}.bias" in params else z
            h = z.relu()
        d = derivative(self.model, z, sample.y)
        for k, h in zip(reversed(self.layers), reversed(inputs), strict=True):
            found |= {f"{k}.d": d} | ({f"{k}.h": h} if k != self.layers[0] else {})
            d = (d @ params[f"{k}.weight"]) * (h > 0)
        return found

    def difference(self, new: Params, old: Params, sample: Data) -> Params:
        """d h' - d_old h_old'; of the first layer (d - d_old) h'."""
        first, *others = self.layers
        apart = new[f"{first}.d"] - old[f"{first}.d"]
        found = {f"{first}.weight": apart.mT @ sample.x.flatten(1), f"{first}.bias": apart[0]}
        for k in others:
            d = torch.cat([new[f"{k}.d"], -old[f"{k}.d"]])
            h = torch.cat([new[f"{k}.h"], old[f"{k}.h"]])
            found |= {f"{k}.weight": d.mT @ h, f"{k}.bias": d.sum(0)}
        return (
            found if self.model.bias else {k: v for k, v in found.items() if k != f"{self.layers[-1]}.bias"}
        )


def sample_gradients(model: Model) -> SampleGradients:
    """How this model's gradients of single samples are kept."""
    layers = layers_of(model)
    own = not of_model_alone(model) or model.network.softmax_head
    return Whole(model) if layers is None or own else Factors(model, layers)
