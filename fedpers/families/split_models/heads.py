"""Heads of clients' own: how they start, and how they are trained under a body that stays."""

from typing import Literal

from fedpers.core.data import Data
from fedpers.core.params import Params, split
from fedpers.core.rng import Stream
from fedpers.learning.local_training import minimise
from fedpers.learning.model import Model
from fedpers.learning.optimizers import LocalConfig

# drawn for each client as a model's head starts; uniform in [0, 1); or the initial model's head for all
HeadInit = Literal["default", "uniform01", "common"]


def first_head(model: Model, params: Params, rng: Stream, how: HeadInit) -> Params:
    """A client's first head, the same whenever it is first visited; dtype and device of `params`."""
    if how == "common":
        return split(params, model.is_head)[0]
    like = next(iter(params.values()))
    head = model.init_head(rng.integer_seed())
    if how == "uniform01":
        head = {k: rng.uniform(*v.shape) for k, v in head.items()}
    return {k: v.to(like) for k, v in head.items()}


def fit_head(model: Model, body: Params, head: Params, data: Data, rng: Stream, cfg: LocalConfig) -> Params:
    """The head after local training on the features of `data`, which are computed once.

    The same steps as with a fresh pass through the body each time, since a sample's features depend on
    nothing but the sample and the body.
    """
    return minimise(model.features_loss, head, data.with_inputs(model.body(body, data.x)), rng, cfg)
