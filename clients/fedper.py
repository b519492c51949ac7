"""FedPer, client half. The algorithm box is in strategies/fedper.py."""

from dataclasses import dataclass, field
from typing import Any

from fedpers.core.params import merge, split
from fedpers.method import Data, LocalConfig, Params, PersonalizedClient, Stream, minimise, record


@dataclass(frozen=True)
class FedPerConfig:
    """Hyper-parameters of FedPer."""

    local: LocalConfig = field(default_factory=LocalConfig)


@record
class Body:
    """Order and reply: the shared layers."""

    theta: Params


@record
class ClientState:
    """The private layers."""

    head: Params


class FedPerClient(PersonalizedClient):
    """Trains the shared body together with its own head; only the body is sent."""

    config: FedPerConfig
    private = ("head",)
    reply_is_shared = True

    def initial_state(self, params: Params, data: Data, rng: Stream) -> ClientState:
        """All heads start alike."""
        return ClientState(split(params, self.model.is_head)[0])

    def answer(self, order: Body, state: ClientState, data: Data, rng: Stream) -> tuple[Body, ClientState]:
        """One local training of body and head together."""
        w = merge(order.theta, state.head)
        w = minimise(self.model.loss, w, data, rng, self.config.local)                   # [C1]
        head, theta = split(w, self.model.is_head)                                       # [C2]
        return Body(theta), ClientState(head)                                            # [C3]

    def personal(self, shared: Body, state: ClientState) -> Params:
        """The shared body under the client's own head."""
        return shared.theta | state.head

    def work(self, order: Any, n: int) -> int:
        """As many sample gradients as the local training takes."""
        return self.config.local.work(n)
