"""FedAvgM, FedAdam and FedYogi, client half. The algorithm box is in strategies/fedopt.py."""

from dataclasses import dataclass, field
from typing import ClassVar

from fedpers.families.global_model.client import GlobalModelClient, Weights
from fedpers.method import Data, LocalConfig, Stream, above, bounds, minimise


@dataclass(frozen=True)
class FedAvgMConfig:
    """Hyper-parameters of FedAvgM: the server's optimiser is SGD with momentum."""

    rule: ClassVar = "momentum"
    eta: float = 1.0                      # η: server learning rate
    beta: float = 0.9                     # β: server momentum
    local: LocalConfig = field(default_factory=LocalConfig)

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        low = bounds(self, beta=(0, None))
        high = [] if self.beta < 1 else [f"beta={self.beta}: must be below 1"]
        return [*above(self, eta=0), *low, *high]


@dataclass(frozen=True)
class FedAdamConfig:
    """Hyper-parameters of FedAdam, with the paper's letters."""

    rule: ClassVar = "adam"
    eta: float = 0.01                     # η: server learning rate
    beta1: float = 0.9                    # β1: decay of the first moment
    beta2: float = 0.99                   # β2: decay of the second moment
    tau: float = 1e-3                     # τ: adaptivity; also v_0 = τ²
    local: LocalConfig = field(default_factory=LocalConfig)

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        high = [f"{n}={getattr(self, n)}: must be below 1" for n in ("beta1", "beta2")
                if not getattr(self, n) < 1]
        return [*above(self, eta=0, tau=0), *bounds(self, beta1=(0, None), beta2=(0, None)), *high]


@dataclass(frozen=True)
class FedYogiConfig(FedAdamConfig):
    """Hyper-parameters of FedYogi, those of FedAdam."""

    rule: ClassVar = "yogi"


class FedOptClient(GlobalModelClient):
    """Trains the received model and sends it back, as in FedAvg; remembers nothing."""

    config: FedAvgMConfig | FedAdamConfig

    def answer(self, order: Weights, state: None, data: Data, rng: Stream) -> tuple[Weights, None]:
        """One local training from the received weights."""
        w = minimise(self.model.loss, order.params, data, rng, self.config.local)        # [C1]
        return Weights(w), None                                                          # [C2]
