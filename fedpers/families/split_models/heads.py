"""What methods share that train a head under a body that stays."""

from fedpers.core.data import Data
from fedpers.core.params import Params
from fedpers.core.rng import Stream
from fedpers.learning.local_training import minimise
from fedpers.learning.model import Model
from fedpers.learning.optimizers import LocalConfig


def fit_head(model: Model, body: Params, head: Params, data: Data, rng: Stream, cfg: LocalConfig) -> Params:
    """The head after local training on the features of `data`, which are computed once.

    The same steps as with a fresh pass through the body each time, since a sample's features depend on
    nothing but the sample and the body.
    """
    return minimise(model.features_loss, head, data.with_inputs(model.body(body, data.x)), rng, cfg)
