"""A client's own part of a model, whatever it is: how it starts, and its training under the shared part.

Of a whole head all steps are taken on features that are computed once; of other parts each step goes through
the model.
"""

from collections.abc import Sequence
from typing import Any

from fedpers.core.data import Data
from fedpers.core.params import Params
from fedpers.core.rng import Stream
from fedpers.families.split_models.heads import (
    HeadInit,
    fit_head,
    head_steps,
    initial_heads,
    steps_and_gradient,
)
from fedpers.families.split_models.parts import cut
from fedpers.learning.features import Features
from fedpers.learning.gradients import grad
from fedpers.learning.local_training import minimise
from fedpers.learning.losses import Frozen
from fedpers.learning.model import Model
from fedpers.learning.optimizers import LocalConfig


def first_parts(
    model: Model, params: Params, data: Sequence[Data], rngs: Sequence[Stream], config: Any
) -> list[Params]:
    """The own parts that clients start with: heads as `head_init` says, all else as in `params`.

    Args:
        config: `personal`, a `Part`; maybe `head_init` and `own_classes`.
    """
    own = cut(model, params, config.personal)[1]
    how: HeadInit = getattr(config, "head_init", "common")
    if not any(map(model.is_head, own)):
        return [own] * len(rngs)
    own_classes = getattr(config, "own_classes", False)
    heads = initial_heads(model, params, data, rngs, how, own_classes)
    return [own | {k: v for k, v in head.items() if k in own} for head in heads]


def of_head(model: Model, shared: Params, own: Params) -> bool:
    """Whether the own part is the head, all of it and nothing else."""
    return all(map(model.is_head, own)) and not any(map(model.is_head, shared))


def fit_own(model: Model, shared: Params, own: Params, data: Data, rng: Stream, cfg: LocalConfig) -> Params:
    """The own part after local training under the shared one."""
    if of_head(model, shared, own):
        return fit_head(model, shared, own, data, rng, cfg)
    return minimise(Frozen(model.loss, shared), own, data, rng, cfg)


def own_steps(
    model: Model, shared: Params, own: Params, data: Data, rng: Stream, rate: float, steps: int
) -> Params:
    """The own part after so many gradient steps on all samples."""
    if of_head(model, shared, own):
        return head_steps(Features(model, shared, data), own, rng, rate, steps)
    return (
        fit_own(model, shared, own, data, rng, LocalConfig(rate, steps=steps, batch_size=0)) if steps else own
    )


def own_steps_and_gradient(
    model: Model, shared: Params, own: Params, data: Data, rng: Stream, rate: float, steps: int, report: bool
) -> tuple[Params, Params, Params]:
    """`own_steps`, the gradient of the whole model where they end, and what a head tells if `report`."""
    if of_head(model, shared, own):
        return steps_and_gradient(Features(model, shared, data), own, rng, rate, steps, report)
    after = own_steps(model, shared, own, data, rng, rate, steps)
    return after, grad(model.loss)(after | shared, data), {}
