"""FedAlt, client half. The algorithm box is in strategies/fedalt.py."""

from dataclasses import dataclass, field
from typing import Any

from fedpers.families.split_models.client import SplitClient
from fedpers.families.split_models.heads import HeadInit
from fedpers.families.split_models.parts import Part
from fedpers.method import Data, Frozen, LocalConfig, Params, Stream, Work, minimise


@dataclass(frozen=True)
class FedAltConfig:
    """Hyper-parameters of FedAlt."""

    personal: Part = "head"                                      # what v_i is
    v: LocalConfig = field(default_factory=LocalConfig)          # τ_v, γ_v
    u: LocalConfig = field(default_factory=LocalConfig)          # τ_u, γ_u
    head_init: HeadInit = "common"                               # personal heads start alike
    own_classes: bool = False                                    # heads of the client's classes alone


class FedAltClient(SplitClient):
    """Trains its personal part first, then the shared part with the personal part fixed."""

    config: FedAltConfig

    def train(self, u: Params, v: Params, data: Data, rng: Stream) -> tuple[Params, Params]:
        """Two local trainings, one for each part."""
        v = minimise(Frozen(self.model.loss, u), v, data, rng, self.config.v)            # [C1]
        u = minimise(Frozen(self.model.loss, v), u, data, rng, self.config.u)            # [C2]
        return u, v                                                                      # [C3] [C4]

    def work(self, order: Any, n: int) -> Work:
        """The sample gradients of both trainings; a head's has a pass forward through the body too."""
        own, shared = self.config.v.work(n), self.config.u.work(n)
        if self.config.personal == "head":
            return Work(shared, forwards=own, head_steps=own)
        return Work(own + shared)
