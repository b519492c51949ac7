"""pFedGraph, client half. The algorithm box is in strategies/pfedgraph.py."""

from dataclasses import dataclass, field

from torch import Tensor

from fedpers.core.params import dot, sq_norm
from fedpers.families.peers.own_model import OwnModel, OwnModelClient
from fedpers.learning.losses import Loss
from fedpers.method import Data, LocalConfig, Params, Stream, above, bounds, minimise, record


@dataclass(frozen=True)
class PFedGraphConfig:
    """Hyper-parameters of pFedGraph."""

    alpha: float = 0.8                    # α: pull of the weights towards the shares of samples
    alike: float = 0.9                    # s: a larger cosine counts as 1
    lam: float = 0.01                     # λ: pull of the directions of the models that were mixed
    local: LocalConfig = field(default_factory=LocalConfig)

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        return [*above(self, alpha=0), *bounds(self, alike=(-1, 1))]


@record
class Mixture:
    """Order: where to start, and the directions that are near."""

    w: Params                             # u_i
    c: Params                             # empty: none, as before the first visit


@dataclass(frozen=True)
class Aligned:
    """The loss, less λ times the mean cosine of w and the models that were mixed."""

    loss: Loss
    lam: float
    c: Params

    def __call__(self, w: Params, batch: Data) -> Tensor:
        square = sq_norm(w)
        length = (square + (square == 0)).sqrt()       # at w = 0 there is no direction
        return self.loss(w, batch) - self.lam * dot(self.c, w) / length                  # [C1]


class PFedGraphClient(OwnModelClient):
    """Trains the model that the server mixed for it, and keeps its direction near those of the mixture."""

    config: PFedGraphConfig

    def answer(
        self, order: Mixture, state: OwnModel, data: Data, rng: Stream
    ) -> tuple[OwnModel, OwnModel]:
        """One local training from the mixture."""
        h = self.config
        loss: Loss = Aligned(self.model.loss, h.lam, order.c) if order.c else self.model.loss
        new = OwnModel(minimise(loss, order.w, data, rng, h.local))                      # [C2]
        return new, new                                                                  # [C3]
