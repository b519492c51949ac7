"""Client half of what methods share whose clients own a model and predict with those of others too."""

from abc import ABC
from typing import Any

from torch import Tensor

from fedpers.core.data import ClientData
from fedpers.core.rng import Stream
from fedpers.families.peers.messages import Support
from fedpers.flower.client import PersonalizedClient


class PeerClient(PersonalizedClient, ABC):
    """Measures what the client's own model does alone, beside what it predicts with."""

    def assess(self, shared: Any, state: Any, data: ClientData, rng: Stream) -> dict[str, Tensor]:
        """Adds `own_loss` and `own_accuracy`, those of φ_i alone on the test samples.

        A client that never trained has no such columns.
        """
        found = super().assess(shared, state, data, rng)
        if isinstance(shared, Support):
            found["own_loss"], found["own_accuracy"] = self._scores(shared, state, state.phi, data.test)
        return found
