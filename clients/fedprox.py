"""FedProx, client half. The algorithm box is in strategies/fedprox.py."""

from dataclasses import dataclass, field
from typing import Any, Literal

from fedpers.core.bounds import bounds
from fedpers.learning.losses import soft_proximal
from fedpers.method import Data, LocalConfig, Params, PersonalizedClient, Stream, minimise, record


@dataclass(frozen=True)
class FedProxConfig:
    """Hyper-parameters of FedProx."""

    mu: float = 0.1                                      # μ: pull of the global model
    sampling: Literal["uniform", "proportional"] = "uniform"     # proportional: the paper's p_k
    local: LocalConfig = field(default_factory=LocalConfig)

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        return bounds(self, mu=(0, None))


@record
class Weights:
    """Order and reply: a whole model."""

    params: Params


class FedProxClient(PersonalizedClient):
    """Trains the received model without going far from it; remembers nothing."""

    config: FedProxConfig
    reply_is_shared = True

    def answer(
        self, order: Weights, state: None, data: Data, rng: Stream
    ) -> tuple[Weights, None]:
        """One local training on h_k, from the received weights."""
        objective = soft_proximal(self.model.loss, self.config.mu, 1.0, order.params)    # [C1]
        w = minimise(objective, order.params, data, rng, self.config.local)              # [C2]
        return Weights(w), None                                                          # [C3]

    def personal(self, shared: Weights, state: None) -> Params:
        """The global model."""
        return shared.params

    def work(self, order: Any, n: int) -> int:
        """As many sample gradients as the local training takes."""
        return self.config.local.work(n)
