"""Ditto, client half. The algorithm box is in strategies/ditto.py."""

from dataclasses import dataclass, field
from typing import Any

from fedpers.families.disclosures import MODEL
from fedpers.families.global_model.client import Weights
from fedpers.method import (
    Data,
    LocalConfig,
    Params,
    PersonalizedClient,
    Stream,
    bounds,
    minimise,
    proximal,
    record,
)


@dataclass(frozen=True)
class DittoConfig:
    """Hyper-parameters of Ditto."""

    lam: float = 0.1                      # λ: pull of the global model
    local: LocalConfig = field(default_factory=LocalConfig)

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        return bounds(self, lam=(0, None))


@record
class ClientState:
    """The personal model; it never leaves the client."""

    v: Params


class DittoClient(PersonalizedClient):
    """Trains its personal model near the global one, and the global one for the others."""

    config: DittoConfig
    disclosure = MODEL
    private = ("v",)

    def initial_state(self, params: Params, data: Data, rng: Stream) -> ClientState:
        """Personal models start from the initial global one."""
        return ClientState(params)

    def answer(
        self, order: Weights, state: ClientState, data: Data, rng: Stream
    ) -> tuple[Weights, ClientState]:
        """Two local trainings: of the personal model, then of the global one."""
        h_k = proximal(self.model.loss, self.config.lam, order.params)
        v = minimise(h_k, state.v, data, rng, self.config.local)                         # [C1]
        w = minimise(self.model.loss, order.params, data, rng, self.config.local)        # [C3]
        return Weights(w), ClientState(v)                                                # [C2] [C4]

    def personal(self, shared: Any, state: ClientState) -> Params:
        """The personal model."""
        return state.v

    def work(self, order: Any, n: int) -> int:
        """Two local trainings."""
        return 2 * self.config.local.work(n)
