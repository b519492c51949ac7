"""Clients whose own model is their state and their reply: the server mixes models for them."""

from abc import ABC
from typing import Any

from fedpers.core.data import Data
from fedpers.core.params import Params
from fedpers.core.pytree import record
from fedpers.core.rng import Stream
from fedpers.families.disclosures import OWN_MODEL
from fedpers.flower.client import PersonalizedClient


@record("fedamp.OwnModel")
class OwnModel:
    """The client's model w_i: its state, and its reply."""

    w: Params


class OwnModelClient(PersonalizedClient, ABC):
    """Keeps the model that it trained last, sends it, and predicts with it."""

    config: Any  # `local`
    disclosure = OWN_MODEL

    def initial_state(self, params: Params, data: Data, rng: Stream) -> OwnModel:
        """All clients start from the same initial model."""
        return OwnModel(params)

    def personal(self, shared: Any, state: OwnModel) -> Params:
        """The client's own model."""
        return state.w

    def work(self, order: Any, n: int) -> int:
        """As many sample gradients as the local training takes."""
        return self.config.local.work(n)  # type: ignore[no-any-return]
