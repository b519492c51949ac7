"""FedProx, client half. The algorithm box is in strategies/fedprox.py."""

from dataclasses import dataclass, field
from typing import Literal

from fedpers.families.global_model.client import GlobalModelClient, Weights
from fedpers.method import Data, LocalConfig, Stream, bounds, minimise, proximal


@dataclass(frozen=True)
class FedProxConfig:
    """Hyper-parameters of FedProx."""

    mu: float = 0.1                                      # μ: pull of the global model
    sampling: Literal["uniform", "proportional"] = "uniform"     # proportional: the paper's p_k
    local: LocalConfig = field(default_factory=LocalConfig)

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        return bounds(self, mu=(0, None))


class FedProxClient(GlobalModelClient):
    """Trains the received model with a proximal term to it; remembers nothing."""

    config: FedProxConfig

    def answer(self, order: Weights, state: None, data: Data, rng: Stream) -> tuple[Weights, None]:
        """One local training on h_k, from the received weights."""
        h_k = proximal(self.model.loss, self.config.mu, order.params)                    # [C1]
        w = minimise(h_k, order.params, data, rng, self.config.local)                    # [C2]
        return Weights(w), None                                                          # [C3]
