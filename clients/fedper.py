"""FedPer, client half. The algorithm box is in strategies/fedper.py."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from fedpers.core.params import merge, split
from fedpers.families.split_models.client import SplitClient
from fedpers.families.split_models.heads import HeadInit
from fedpers.method import Data, LocalConfig, Params, Stream, minimise


@dataclass(frozen=True)
class FedPerConfig:
    """Hyper-parameters of FedPer."""

    personal: ClassVar = "head"           # the private layers W_k
    local: LocalConfig = field(default_factory=LocalConfig)
    head_init: HeadInit = "default"       # heads are drawn one a client
    own_classes: bool = False             # heads of the client's classes alone


class FedPerClient(SplitClient):
    """Trains the shared body together with its own head; only the body is sent."""

    config: FedPerConfig

    def train(self, theta: Params, head: Params, data: Data, rng: Stream) -> tuple[Params, Params]:
        """One local training of body and head together."""
        w = minimise(self.model.loss, merge(theta, head), data, rng, self.config.local)  # [C1]
        head, theta = split(w, self.model.is_head)                                       # [C2]
        return theta, head                                                               # [C3]

    def work(self, order: Any, n: int) -> int:
        """As many sample gradients as the local training takes."""
        return self.config.local.work(n)
