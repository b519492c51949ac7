"""FedAlt, client half. The algorithm box is in strategies/fedalt.py."""

from dataclasses import dataclass, field
from typing import Any, Literal

from fedpers.core.params import split
from fedpers.learning.losses import Frozen
from fedpers.method import Data, LocalConfig, Params, PersonalizedClient, Stream, minimise, record


@dataclass(frozen=True)
class FedAltConfig:
    """Hyper-parameters of FedAlt."""

    personal: Literal["head", "body"] = "head"                   # what v_i is
    v: LocalConfig = field(default_factory=LocalConfig)          # τ_v, γ_v
    u: LocalConfig = field(default_factory=LocalConfig)          # τ_u, γ_u


@record
class Shared:
    """Order and reply: the shared part."""

    u: Params


@record
class ClientState:
    """The personal part; it never leaves the client."""

    v: Params


class FedAltClient(PersonalizedClient):
    """Trains its own part first, and the shared part for it."""

    config: FedAltConfig
    private = ("v",)
    reply_is_shared = True

    def initial_state(self, params: Params, data: Data, rng: Stream) -> ClientState:
        """All personal parts start alike."""
        head, body = split(params, self.model.is_head)
        return ClientState(head if self.config.personal == "head" else body)

    def answer(
        self, order: Shared, state: ClientState, data: Data, rng: Stream
    ) -> tuple[Shared, ClientState]:
        """Two local trainings, one for each part."""
        h, loss = self.config, self.model.loss
        v = minimise(Frozen(loss, order.u), state.v, data, rng, h.v)                     # [C1]
        u = minimise(Frozen(loss, v), order.u, data, rng, h.u)                           # [C2]
        return Shared(u), ClientState(v)                                                 # [C3] [C4]

    def personal(self, shared: Shared, state: ClientState) -> Params:
        """The shared part with the client's own one."""
        return shared.u | state.v

    def work(self, order: Any, n: int) -> int:
        """The sample gradients of both trainings."""
        return self.config.v.work(n) + self.config.u.work(n)
