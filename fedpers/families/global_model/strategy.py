"""Server half of methods that train one global model."""

from abc import ABC

import numpy as np

from fedpers.core.params import Params
from fedpers.families.global_model.client import Weights
from fedpers.flower.roster import Roster
from fedpers.flower.strategy import PersonalizedStrategy


class GlobalModelStrategy(PersonalizedStrategy, ABC):
    """The state is the global model, and that is all that clients need in order to predict."""

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> Weights:
        """The model's initial parameters."""
        return Weights(params)

    def evaluation_message(self, s: Weights, k: int) -> Weights | None:
        """The global model; None where clients predict with their own."""
        return s

    def models(self, s: Weights) -> dict[str, Params]:
        """The global model."""
        return {"global": s.params}
