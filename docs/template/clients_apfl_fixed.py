"""Template of a method, client half: a fixed mixture of a local and a global model.

Copy to clients/NAME.py, and the other file to strategies/NAME.py. This pair is a method of its own
(APFL of Deng, Kamani, Mahdavi 2020 with a fixed mixing weight), so that a test can run it.
"""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedpers.method import (
    Data,
    LocalConfig,
    Params,
    PersonalizedClient,
    Stream,
    minimise,
    record,
)
from fedpers.core.params import add, scale


@dataclass(frozen=True)
class TemplateConfig:
    """Hyper-parameters, with the paper's letters."""

    alpha: float = 0.5                    # α: weight of the local model in the mixture
    local: LocalConfig = field(default_factory=LocalConfig)

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        return [] if 0 <= self.alpha <= 1 else [f"alpha={self.alpha}: must be in [0, 1]"]


@record
class Weights:
    """Order and reply: the global model."""

    params: Params


@record
class ClientState:
    """The local model v_k; it never leaves the client."""

    local: Params


class TemplateClient(PersonalizedClient):
    """Trains the global model for the server and its own part of the mixture for itself."""

    config: TemplateConfig
    private = ("local",)

    def initial_state(self, params: Params, data: Data, rng: Stream) -> ClientState:
        """The local model starts where the global one does."""
        return ClientState(params)

    def answer(
        self, order: Weights, state: ClientState, data: Data, rng: Stream
    ) -> tuple[Weights, ClientState]:
        """Both local trainings of Algorithm 1."""
        w = minimise(self.model.loss, order.params, data, rng, self.config.local)        # [C1]

        def mixed_loss(v: Params, batch: Data) -> Tensor:
            return self.model.loss(self._mix(v, order.params), batch)

        v = minimise(mixed_loss, state.local, data, rng, self.config.local)             # [C2]
        return Weights(w), ClientState(v)                                                     # [C3]

    def personal(self, shared: Weights, state: ClientState) -> Params:
        """The mixture α v + (1-α) w."""
        return self._mix(state.local, shared.params)

    def work(self, order: Any, n: int) -> int:
        """Two local trainings."""
        return 2 * self.config.local.work(n)

    def _mix(self, local: Params, shared: Params) -> Params:
        return add(scale(local, self.config.alpha), shared, 1 - self.config.alpha)
