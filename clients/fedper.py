"""FedPer, client half. The algorithm box is in strategies/fedper.py."""

from dataclasses import dataclass, field
from typing import Any

from fedpers.core.params import merge
from fedpers.families.split_models.client import SplitClient
from fedpers.families.split_models.heads import HeadInit
from fedpers.families.split_models.parts import Part, cut
from fedpers.method import Data, LocalConfig, Params, Stream, minimise


@dataclass(frozen=True)
class FedPerConfig:
    """Hyper-parameters of FedPer."""

    local: LocalConfig = field(default_factory=LocalConfig)
    head_init: HeadInit = "default"       # heads are drawn one a client
    own_classes: bool = False             # heads of the client's classes alone
    personal: Part = "head"               # the private layers W_k


class FedPerClient(SplitClient):
    """Trains the shared body together with its own head; only the body is sent."""

    config: FedPerConfig

    def train(self, theta: Params, head: Params, data: Data, rng: Stream) -> tuple[Params, Params]:
        """One local training of body and head together."""
        w = minimise(self.model.loss, merge(theta, head), data, rng, self.config.local)  # [C1]
        theta, head = cut(self.model, w, self.config.personal)                           # [C2]
        return theta, head                                                               # [C3]

    def work(self, order: Any, n: int) -> int:
        """As many sample gradients as the local training takes."""
        return self.config.local.work(n)
