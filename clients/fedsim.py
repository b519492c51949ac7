"""FedSim, client half. The algorithm box is in strategies/fedsim.py."""

from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from fedpers.core.bounds import above
from fedpers.core.params import merge, scale, split
from fedpers.method import Data, LocalConfig, Params, PersonalizedClient, Stream, minimise, record


@dataclass(frozen=True)
class FedSimConfig:
    """Hyper-parameters of FedSim."""

    personal: Literal["head", "body"] = "head"                   # what v_i is
    ratio: float = 1.0                                           # γ_v / γ_u; SGD
    local: LocalConfig = field(default_factory=LocalConfig)      # τ, γ_u

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        found = above(self, ratio=0)
        if self.ratio != 1 and self.local.optimizer != "sgd":
            found.append(f"ratio={self.ratio}: needs local.optimizer=sgd, not adam")
        return found


@record
class Shared:
    """Order and reply: the shared part."""

    u: Params


@record
class ClientState:
    """The personal part; it never leaves the client."""

    v: Params


class FedSimClient(PersonalizedClient):
    """Trains its own part and the shared one in the same steps."""

    config: FedSimConfig
    private = ("v",)
    reply_is_shared = True

    def initial_state(self, params: Params, data: Data, rng: Stream) -> ClientState:
        """All personal parts start alike."""
        head, body = split(params, self.model.is_head)
        return ClientState(head if self.config.personal == "head" else body)

    def answer(
        self, order: Shared, state: ClientState, data: Data, rng: Stream
    ) -> tuple[Shared, ClientState]:
        """One local training of both parts."""
        stretch = self.config.ratio**0.5

        # In v/s, steps of rate γ_u are steps of rate s² γ_u in v.
        def loss(w: Params, batch: Data) -> Tensor:
            v = {name: stretch * w[name] for name in state.v}
            return self.model.loss(w | v, batch)

        w = merge(order.u, scale(state.v, 1 / stretch))
        w = minimise(loss, w, data, rng, self.config.local)                              # [C1]
        v, u = split(w, state.v.__contains__)
        return Shared(u), ClientState(scale(v, stretch))                                 # [C2] [C3]

    def personal(self, shared: Shared, state: ClientState) -> Params:
        """The shared part with the client's own one."""
        return shared.u | state.v

    def work(self, order: Any, n: int) -> int:
        """As many sample gradients as the local training takes."""
        return self.config.local.work(n)
