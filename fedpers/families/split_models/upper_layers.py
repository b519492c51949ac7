"""The layers nearest to the outputs, mixed entry by entry of an own and a received model."""

from fedpers.core.data import Data
from fedpers.core.params import Params, between
from fedpers.learning.features import Features
from fedpers.learning.kernels.plan import STACKS
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


def problem_of(model: Model, shared: Params, W: Params, data: Data, often: bool = True) -> tuple[Loss, Data]:
    """(loss of the layers in W above `shared`, samples for it).

    If they are the head alone, what is below gives the same features throughout: those are the samples. Where
    no sample is seen twice (not `often`) plain layers need none: a pass through them costs the same.
    """
    below = {k: v for k, v in shared.items() if k not in W}
    plain = type(model.network) in STACKS  # of a user's module who knows what a second pass would give
    if below and all(map(model.is_head, W)) and (often or not plain):
        return model.features_loss, Features(model, shared, data).data
    return Frozen(model.loss, below), data
