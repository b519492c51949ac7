"""FedSim, client half. The algorithm box is in strategies/fedsim.py."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedpers.core.bounds import above
from fedpers.core.params import merge, scale, split
from fedpers.families.split_models.client import SplitClient
from fedpers.families.split_models.heads import HeadInit
from fedpers.families.split_models.parts import Part
from fedpers.method import Data, LocalConfig, Params, Stream, minimise


@dataclass(frozen=True)
class FedSimConfig:
    """Hyper-parameters of FedSim."""

    personal: Part = "head"                                      # what v_i is
    ratio: float = 1.0                                           # γ_v / γ_u; SGD
    local: LocalConfig = field(default_factory=LocalConfig)      # τ, γ_u
    head_init: HeadInit = "common"                               # personal heads start alike
    own_classes: bool = False                                    # heads of the client's classes alone

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        found = above(self, ratio=0)
        if self.ratio != 1 and (self.local.optimizer != "sgd" or self.local.clip_norm):
            found.append(f"ratio={self.ratio}: needs optimizer=sgd without clip_norm")
        return found


class FedSimClient(SplitClient):
    """Trains its own part and the shared one in the same steps."""

    config: FedSimConfig

    def train(self, u: Params, v: Params, data: Data, rng: Stream) -> tuple[Params, Params]:
        """One local training of both parts."""
        stretch, own = self.config.ratio**0.5, v.keys()

        # In v/s, steps of rate γ_u are steps of rate s² γ_u in v.
        def loss(w: Params, batch: Data) -> Tensor:
            return self.model.loss(w | {name: stretch * w[name] for name in own}, batch)

        w = merge(u, scale(v, 1 / stretch))
        f = loss if stretch != 1 else self.model.loss    # which has a kernel
        v, u = split(minimise(f, w, data, rng, self.config.local), own.__contains__)  # [C1]
        return u, scale(v, stretch)                                                      # [C2] [C3]

    def work(self, order: Any, n: int) -> int:
        """As many sample gradients as the local training takes."""
        return self.config.local.work(n)
