"""FedRep, client half. The algorithm box is in strategies/fedrep.py."""

from dataclasses import dataclass, field
from typing import Any

from fedpers.core.params import split
from fedpers.learning.losses import Frozen
from fedpers.method import Data, LocalConfig, Params, PersonalizedClient, Stream, minimise, record


@dataclass(frozen=True)
class FedRepConfig:
    """Hyper-parameters of FedRep."""

    head: LocalConfig = field(default_factory=lambda: LocalConfig(epochs=5))     # τ_h, α
    body: LocalConfig = field(default_factory=LocalConfig)                       # τ_φ, α


@record
class Body:
    """Order and reply: the shared representation."""

    phi: Params


@record
class ClientState:
    """The private head."""

    head: Params


class FedRepClient(PersonalizedClient):
    """Fits its head to the representation, then moves the representation under that head."""

    config: FedRepConfig
    private = ("head",)
    reply_is_shared = True

    def initial_state(self, params: Params, data: Data, rng: Stream) -> ClientState:
        """All heads start alike."""
        return ClientState(split(params, self.model.is_head)[0])

    def answer(self, order: Body, state: ClientState, data: Data, rng: Stream) -> tuple[Body, ClientState]:
        """Head steps, then body steps."""
        h, loss = self.config, self.model.loss
        old, phi = state.head, order.phi
        head = minimise(Frozen(loss, phi), old, data, rng, h.head)                       # [C1]
        phi = minimise(Frozen(loss, head), phi, data, rng, h.body)                       # [C2]
        return Body(phi), ClientState(head)                                              # [C3] [C4]

    def personal(self, shared: Body, state: ClientState) -> Params:
        """The shared representation under the client's own head."""
        return shared.phi | state.head

    def work(self, order: Any, n: int) -> int:
        """The sample gradients of both trainings."""
        return self.config.head.work(n) + self.config.body.work(n)
