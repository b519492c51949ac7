"""Local training, client half. The algorithm box is in strategies/local.py."""

from dataclasses import dataclass, field
from typing import Any

from fedpers.families.disclosures import NOTHING
from fedpers.method import Data, LocalConfig, Params, PersonalizedClient, Stream, minimise, record


@dataclass(frozen=True)
class LocalTrainingConfig:
    """Hyper-parameters of local training."""

    local: LocalConfig = field(default_factory=LocalConfig)


@record
class YourTurn:
    """Order: train for another round. Empty, like the reply."""


@record
class ClientState:
    """The client's own model."""

    params: Params


class LocalClient(PersonalizedClient):
    """Trains its own model; nothing leaves the client."""

    config: LocalTrainingConfig
    disclosure = NOTHING
    private = ("params",)

    def initial_state(self, params: Params, data: Data, rng: Stream) -> ClientState:
        """All clients start from the same initial model."""
        return ClientState(params)

    def answer(
        self, order: YourTurn, state: ClientState, data: Data, rng: Stream
    ) -> tuple[YourTurn, ClientState]:
        """One local training from the client's own weights."""
        w = minimise(self.model.loss, state.params, data, rng, self.config.local)        # [C1]
        return YourTurn(), ClientState(w)

    def personal(self, shared: None, state: ClientState) -> Params:
        """The client's own model."""
        return state.params

    def work(self, order: Any, n: int) -> int:
        """As many sample gradients as the local training takes."""
        return self.config.local.work(n)
