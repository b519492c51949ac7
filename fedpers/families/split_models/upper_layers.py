"""The layers nearest to the outputs, mixed entry by entry of an own and a received model."""

from fedpers.core.data import Data
from fedpers.core.params import Params, between
from fedpers.learning.features import Features
from fedpers.learning.losses import Frozen, Loss
from fedpers.learning.model import Model


def upper(params: Params, p: int) -> list[str]:
    """The names of the p layers that are nearest to the outputs."""
    layer = {name: name.rpartition(".")[0] for name in params}
    last = list(dict.fromkeys(layer.values()))[-p:]
    return [name for name in params if layer[name] in last]


def mix(own: Params, shared: Params, W: Params) -> Params:
    """`shared`, with own + (shared - own) ⊙ W where W has an entry."""
    return shared | between(own, shared, W)


def below(shared: Params, W: Params) -> Params:
    """What of a model lies below the layers in W."""
    return {k: v for k, v in shared.items() if k not in W}


def problem_of(model: Model, shared: Params, W: Params, data: Data) -> tuple[Loss, Data]:
    """(loss of the layers in W above `shared`, samples for it).

    If they are the head alone, what is below gives the same features throughout: those are the samples.
    """
    fixed = below(shared, W)
    if fixed and all(map(model.is_head, W)):
        return model.features_loss, Features(model, shared, data).data
    return Frozen(model.loss, fixed), data
