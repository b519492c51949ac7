"""FedRep, client half. The algorithm box is in strategies/fedrep.py."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from fedpers.families.split_models.client import SplitClient
from fedpers.families.split_models.heads import HeadInit, fit_head
from fedpers.method import Data, Frozen, LocalConfig, Params, Stream, Work, minimise


@dataclass(frozen=True)
class FedRepConfig:
    """Hyper-parameters of FedRep."""

    personal: ClassVar = "head"                                                  # h_i
    head: LocalConfig = field(default_factory=lambda: LocalConfig(epochs=5))     # τ_h, α
    body: LocalConfig = field(default_factory=LocalConfig)                       # τ_φ, α
    head_init: HeadInit = "default"                                              # drawn one a client
    own_classes: bool = False                                                    # of its classes alone


class FedRepClient(SplitClient):
    """Fits its head to the representation, then moves the representation under that head."""

    config: FedRepConfig

    def train(self, phi: Params, head: Params, data: Data, rng: Stream) -> tuple[Params, Params]:
        """Head steps, then body steps."""
        h = self.config
        head = fit_head(self.model, phi, head, data, rng, h.head)                        # [C1]
        phi = minimise(Frozen(self.model.loss, head), phi, data, rng, h.body)                       # [C2]
        return phi, head                                                                 # [C3] [C4]

    def work(self, order: Any, n: int) -> Work:
        """The body's gradients; the features of the head's training are computed once."""
        return Work(self.config.body.work(n), forwards=n, head_steps=self.config.head.work(n))
