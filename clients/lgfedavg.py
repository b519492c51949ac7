"""LG-FedAvg, client half. The algorithm box is in strategies/lgfedavg.py."""

from dataclasses import dataclass, field
from typing import Any

from fedpers.core.params import merge, split
from fedpers.method import Data, LocalConfig, Params, PersonalizedClient, Stream, minimise, record


@dataclass(frozen=True)
class LGFedAvgConfig:
    """Hyper-parameters of LG-FedAvg."""

    local: LocalConfig = field(default_factory=LocalConfig)


@record
class Head:
    """Order and reply: the shared head."""

    g: Params


@record
class ClientState:
    """The private representation layers."""

    body: Params


class LGFedAvgClient(PersonalizedClient):
    """Trains its own body together with the shared head; only the head is sent."""

    config: LGFedAvgConfig
    private = ("body",)
    reply_is_shared = True

    def initial_state(self, params: Params, data: Data, rng: Stream) -> ClientState:
        """All bodies start alike."""
        return ClientState(split(params, self.model.is_head)[1])

    def answer(self, order: Head, state: ClientState, data: Data, rng: Stream) -> tuple[Head, ClientState]:
        """One local training of body and head together."""
        w = merge(state.body, order.g)
        w = minimise(self.model.loss, w, data, rng, self.config.local)                   # [C1]
        g, body = split(w, self.model.is_head)                                           # [C2]
        return Head(g), ClientState(body)                                                # [C3]

    def personal(self, shared: Head, state: ClientState) -> Params:
        """The shared head on the client's own body."""
        return state.body | shared.g

    def work(self, order: Any, n: int) -> int:
        """As many sample gradients as the local training takes."""
        return self.config.local.work(n)
