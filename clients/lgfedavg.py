"""LG-FedAvg, client half. The algorithm box is in strategies/lgfedavg.py."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from fedpers.core.params import merge, split
from fedpers.families.split_models.client import SplitClient
from fedpers.method import Data, LocalConfig, Params, Stream, minimise


@dataclass(frozen=True)
class LGFedAvgConfig:
    """Hyper-parameters of LG-FedAvg."""

    personal: ClassVar = "body"           # the representation l_m
    local: LocalConfig = field(default_factory=LocalConfig)


class LGFedAvgClient(SplitClient):
    """Trains its own body together with the shared head; only the head is sent."""

    config: LGFedAvgConfig

    def train(self, g: Params, body: Params, data: Data, rng: Stream) -> tuple[Params, Params]:
        """One local training of body and head together."""
        w = minimise(self.model.loss, merge(body, g), data, rng, self.config.local)      # [C1]
        g, body = split(w, self.model.is_head)                                           # [C2]
        return g, body                                                                   # [C3]

    def work(self, order: Any, n: int) -> int:
        """As many sample gradients as the local training takes."""
        return self.config.local.work(n)
