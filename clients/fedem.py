"""FedEM, client half. The algorithm box is in strategies/fedem.py."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedpers.core.bounds import bounds
from fedpers.families.clustered.centers import center_losses
from fedpers.families.disclosures import COMPONENTS
from fedpers.learning.mixing import mixture
from fedpers.method import Data, LocalConfig, Params, PersonalizedClient, Stream, minimise, record


@dataclass(frozen=True)
class FedEMConfig:
    """Hyper-parameters of FedEM."""

    num_components: int = 3               # M
    local: LocalConfig = field(default_factory=LocalConfig)
    tell_weights: bool = False            # clients send π_t, which is kept in arrays.npz

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        return bounds(self, num_components=(1, None))


@record
class Components:
    """Order and reply: all components."""

    thetas: tuple[Params, ...]


@record
class Trained:
    """Reply with `tell_weights`: all components, and π_t, which no noise hides."""

    thetas: tuple[Params, ...]
    told: Tensor             # [M]


@record
class ClientState:
    """The client's mixture weights π_t; they leave the client only if `tell_weights` says so."""

    pi: Tensor               # [M], on the simplex


class FedEMClient(PersonalizedClient):
    """Weighs its samples by responsibility, then trains every component on its share of them."""

    config: FedEMConfig
    disclosure = COMPONENTS
    private = ("pi",)
    reply_is_shared = True

    def initial_state(self, params: Params, data: Data, rng: Stream) -> ClientState:
        """Equal weights."""
        size = self.config.num_components
        return ClientState(data.mask.new_full((size,), 1 / size))

    def answer(
        self, order: Components, state: ClientState, data: Data, rng: Stream
    ) -> tuple[Components | Trained, ClientState]:
        """One E-step on all samples, then one local training of each component."""
        q = self.responsibilities(order.thetas, state.pi, data)                          # [C1]
        pi = (q * data.mask).sum(1) / data.num                                           # [C2]
        numbers = torch.arange(len(data), device=data.y.device)
        numbered = Data(data.x, numbers, data.mask)
        pairs = zip(order.thetas, q.unbind(0), strict=True)
        thetas = [self._train(theta, q_m, data, numbered, rng) for theta, q_m in pairs]
        trained = tuple(thetas)
        reply = Trained(trained, pi) if self.config.tell_weights else Components(trained)
        return reply, ClientState(pi)                                                    # [C4]

    def responsibilities(self, thetas: tuple[Params, ...], pi: Tensor, data: Data) -> Tensor:
        """q [M, n]: the posterior of the components for each sample."""
        return torch.softmax(pi.log()[:, None] - center_losses(self.model, thetas, data), 0)

    def _train(self, theta: Params, q: Tensor, data: Data, numbered: Data, rng: Stream) -> Params:
        # Batches carry the numbers of their samples, so that each q meets its own sample.
        def weighted(w: Params, batch: Data) -> Tensor:
            losses = self.model.sample_losses(self.model(w, batch.x), data.y[batch.y])
            return (losses * q[batch.y] * batch.mask).sum() / batch.num

        return minimise(weighted, theta, numbered, rng, self.config.local)               # [C3]

    def predict(self, shared: Components | Trained, state: ClientState, x: Tensor) -> Tensor:
        """Outputs whose loss is that of the mixture of the components' probabilities.

        Logarithms of probabilities for classes, log-odds for a binary task; for regression the
        mean of the mixture.
        """
        outputs = torch.stack([self.model(theta, x) for theta in shared.thetas])
        return mixture(self.model, outputs, state.pi)

    @classmethod
    def exposed(cls, config: FedEMConfig) -> list[str]:
        """π_t, if it is to be sent."""
        return ["set method.tell_weights=false (else clients send π_t)"] * config.tell_weights

    def work(self, order: Any, n: int) -> int:
        """Every component takes a whole local training."""
        return self.config.num_components * self.config.local.work(n)
