"""The layers nearest to the outputs, mixed entry by entry of an own and a received model."""

from collections.abc import Callable
from functools import partial

import torch

from fedpers.core.data import Data
from fedpers.core.params import Params
from fedpers.learning.features import Features
from fedpers.learning.gradients import grad, head_gradient
from fedpers.learning.losses import Frozen, Loss
from fedpers.learning.model import Model

Slope = Callable[[Params, Data], Params]  # a gradient


def upper(params: Params, p: int) -> list[str]:
    """The names of the p layers that are nearest to the outputs."""
    layer = {name: name.rpartition(".")[0] for name in params}
    last = list(dict.fromkeys(layer.values()))[-p:]
    return [name for name in params if layer[name] in last]


def mixed(own: Params, shared: Params, W: Params) -> Params:
    """own + (shared - own) ⊙ W, of the parameters that W has."""
    return {k: torch.lerp(own[k], shared[k], w) for k, w in W.items()}


def mix(own: Params, shared: Params, W: Params) -> Params:
    """`shared`, with `mixed` where W has an entry."""
    return shared | mixed(own, shared, W)


def problem_of(model: Model, shared: Params, W: Params, data: Data) -> tuple[Loss, Slope, Data]:
    """(loss of the layers in W above `shared`, its gradient in them, samples for both).

    If they are the head alone, what is below gives the same features throughout: those are the samples.
    """
    if all(map(model.is_head, W)):
        return model.features_loss, partial(head_gradient, model), Features(model, shared, data).data
    loss = Frozen(model.loss, {k: v for k, v in shared.items() if k not in W})
    return loss, grad(loss), data
