"""FedRep, client half. The algorithm box is in strategies/fedrep.py."""

from dataclasses import dataclass, field
from typing import Any

from fedpers.families.split_models.client import SplitClient
from fedpers.families.split_models.heads import HeadInit
from fedpers.families.split_models.own import fit_own
from fedpers.families.split_models.parts import Part
from fedpers.method import Data, Frozen, LocalConfig, Params, Stream, Work, minimise


@dataclass(frozen=True)
class FedRepConfig:
    """Hyper-parameters of FedRep."""

    head: LocalConfig = field(default_factory=lambda: LocalConfig(epochs=5))     # τ_h, α
    body: LocalConfig = field(default_factory=LocalConfig)                       # τ_φ, α
    head_init: HeadInit = "default"                                              # drawn one a client
    own_classes: bool = False                                                    # of its classes alone
    personal: Part = "head"                                                      # what h_i is


class FedRepClient(SplitClient):
    """Fits its head to the representation, then moves the representation under that head."""

    config: FedRepConfig

    def train(self, phi: Params, head: Params, data: Data, rng: Stream) -> tuple[Params, Params]:
        """Head steps, then body steps."""
        h = self.config
        head = fit_own(self.model, phi, head, data, rng, h.head)                        # [C1]
        phi = minimise(Frozen(self.model.loss, head), phi, data, rng, h.body)                       # [C2]
        return phi, head                                                                 # [C3] [C4]

    def work(self, order: Any, n: int) -> Work:
        """The body's gradients; the features of a head's training are computed once, of other parts not."""
        own, shared = self.config.head.work(n), self.config.body.work(n)
        if self.config.personal == "head":
            return Work(shared, forwards=n, head_steps=own)
        return Work(own + shared)
