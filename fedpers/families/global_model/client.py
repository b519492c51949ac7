"""Client half of methods that train one global model."""

from abc import ABC
from typing import Any

from fedpers.core.params import Params
from fedpers.core.pytree import record
from fedpers.core.work import Work
from fedpers.families.disclosures import MODEL
from fedpers.flower.client import PersonalizedClient


@record("global_model.Weights")
class Weights:
    """A whole model: the server's state, what it sends, and what a client sends back."""

    params: Params


class GlobalModelClient(PersonalizedClient, ABC):
    """Predicts with the global model, or with what `adapt` made of it; remembers nothing."""

    config: Any  # `local`: how it trains
    reply_is_shared = True
    disclosure = MODEL

    def personal(self, shared: Weights, state: None) -> Params:
        """The received model."""
        return shared.params

    def work(self, order: Any, n: int) -> Work | int:
        """As many sample gradients as the local training takes."""
        return int(self.config.local.work(n))
