"""LG-FedAvg, client half. The algorithm box is in strategies/lgfedavg.py."""

from dataclasses import dataclass, field
from typing import Any

from fedpers.core.params import merge
from fedpers.families.split_models.client import SplitClient
from fedpers.families.split_models.parts import Part, cut
from fedpers.method import Data, LocalConfig, Params, Stream, minimise


@dataclass(frozen=True)
class LGFedAvgConfig:
    """Hyper-parameters of LG-FedAvg."""

    local: LocalConfig = field(default_factory=LocalConfig)
    personal: Part = "body"               # the representation l_m


class LGFedAvgClient(SplitClient):
    """Trains its own body together with the shared head; only the head is sent."""

    config: LGFedAvgConfig

    def train(self, g: Params, body: Params, data: Data, rng: Stream) -> tuple[Params, Params]:
        """One local training of body and head together."""
        w = minimise(self.model.loss, merge(body, g), data, rng, self.config.local)      # [C1]
        g, body = cut(self.model, w, self.config.personal)                               # [C2]
        return g, body                                                                   # [C3]

    def work(self, order: Any, n: int) -> int:
        """As many sample gradients as the local training takes."""
        return self.config.local.work(n)
