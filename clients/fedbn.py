"""FedBN, client half. The algorithm box is in strategies/fedbn.py."""

from dataclasses import dataclass, field
from typing import Any

from fedpers.families.split_models.client import SplitClient
from fedpers.families.split_models.parts import Part, cut
from fedpers.method import Data, LocalConfig, Params, Stream, merge, minimise


@dataclass(frozen=True)
class FedBNConfig:
    """Hyper-parameters of FedBN."""

    private: Part = "norms"                # what stays with its client
    local: LocalConfig = field(default_factory=LocalConfig)

    @property
    def personal(self) -> Part:
        """The part of the model that stays on the client."""
        return self.private


class FedBNClient(SplitClient):
    """Trains the received layers together with its own normalisation."""

    config: FedBNConfig

    def train(self, shared: Params, own: Params, data: Data, rng: Stream) -> tuple[Params, Params]:
        """One local training of all layers together."""
        w = minimise(self.model.loss, merge(shared, own), data, rng, self.config.local)  # [C1]
        return cut(self.model, w, self.config.private)                                   # [C2] [C3]

    def work(self, order: Any, n: int) -> int:
        """As many sample gradients as the local training takes."""
        return self.config.local.work(n)
