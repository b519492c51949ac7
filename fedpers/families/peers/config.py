"""FedeRiCo's hyper-parameters."""

from dataclasses import dataclass, field
from typing import Literal

from fedpers.core.bounds import bounds
from fedpers.learning.optimizers import LocalConfig
from fedpers.learning.training_round import cannot_keep


@dataclass(frozen=True)
class FedeRiCoConfig:
    """Hyper-parameters of FedeRiCo, with the paper's letters."""

    num_neighbours: int | Literal["all"] = 3  # M; all: everybody else
    warmup: int = 1  # rounds that each client first trains alone
    epsilon: float = 0.3  # ε: probability of uniform neighbours
    memory: Literal["average", "sum"] = "average"  # L̂_ij: moving average of losses, or their sum
    beta: float = 0.6  # β: weight of the NEW loss in the average
    loss: Literal["mean", "sum"] = "mean"  # l_ij: κ times the mean loss, or the sum
    kappa: float = 3.0  # κ
    unseen: Literal["mask", "zero"] = "mask"  # models that i never tried
    update: Literal["steps", "grad"] = "steps"  # local training, or one full gradient
    local: LocalConfig = field(default_factory=lambda: LocalConfig(0.01, batch_size=50, optimizer="adam"))
    owner: Literal["sgd", "adam"] = "sgd"  # update=grad: the owner's optimiser
    eta: float = 0.01  # update=grad: η, the owner's rate
    normalise: bool = True  # update=steps: divide what comes by W_i = Σ_j w_ji
    start: Literal["independent", "common"] = "independent"  # the φ_i before round 1
    average: Literal["probabilities", "logits"] = "probabilities"
    w_min: float = 1e-3  # smaller weights neither train nor predict

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        found = [] if self.num_neighbours == "all" else bounds(self, num_neighbours=(0, None))
        found += cannot_keep(self.local, "FedeRiCo trains models of others, other ones each round")
        found += bounds(self, warmup=(0, None), kappa=(0, None), eta=(0, None))
        return found + bounds(self, epsilon=(0, 1), beta=(0, 1), w_min=(0, 1))

    def neighbours(self, K: int) -> int:
        """M among K clients."""
        return K - 1 if isinstance(self.num_neighbours, str) else self.num_neighbours

    @property
    def owner_optimiser(self) -> LocalConfig:
        """The owner's optimiser with update=grad; plain SGD, which remembers nothing, without."""
        return LocalConfig(lr=self.eta, optimizer=self.owner if self.update == "grad" else "sgd")
