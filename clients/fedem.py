"""FedEM, client half. The algorithm box is in strategies/fedem.py."""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedpers.core.bounds import bounds
from fedpers.families.clustered.centers import center_losses
from fedpers.method import Data, LocalConfig, Params, PersonalizedClient, Stream, minimise, record

EM_STEPS = 50  # of a new client on its weights

@dataclass(frozen=True)
class FedEMConfig:
    """Hyper-parameters of FedEM."""

    num_components: int = 3               # M
    local: LocalConfig = field(default_factory=LocalConfig)

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        return bounds(self, num_components=(1, None))


@record
class Components:
    """Order and reply: all components."""

    thetas: tuple[Params, ...]


@record
class ForNewcomer:
    """To predict with, for a client that never trained: it has no mixture weights yet."""

    thetas: tuple[Params, ...]


@record
class Fitted:
    """The components and the weights that a new client has found for them."""

    thetas: tuple[Params, ...]
    pi: Tensor               # [M]


@record
class ClientState:
    """The client's mixture weights π_t; they never leave the client."""

    pi: Tensor               # [M], on the simplex


class FedEMClient(PersonalizedClient):
    """Weighs its samples by responsibility, then trains every component on its share of them."""

    config: FedEMConfig
    private = ("pi",)
    reply_is_shared = True

    def initial_state(self, params: Params, data: Data, rng: Stream) -> ClientState:
        """Equal weights."""
        size = self.config.num_components
        return ClientState(data.mask.new_full((size,), 1 / size))

    def answer(
        self, order: Components, state: ClientState, data: Data, rng: Stream
    ) -> tuple[Components, ClientState]:
        """One E-step on all samples, then one local training of each component."""
        q = self.responsibilities(order.thetas, state.pi, data)                          # [C1]
        pi = (q * data.mask).sum(1) / data.num                                           # [C2]
        numbers = torch.arange(len(data), device=data.y.device)
        numbered = Data(data.x, numbers, data.mask)
        pairs = zip(order.thetas, q.unbind(0), strict=True)
        thetas = [self._train(theta, q_m, data, numbered, rng) for theta, q_m in pairs]
        return Components(tuple(thetas)), ClientState(pi)                                # [C4]

    def responsibilities(self, thetas: tuple[Params, ...], pi: Tensor, data: Data) -> Tensor:
        """q [M, n]: the posterior of the components for each sample."""
        return torch.softmax(pi.log()[:, None] - center_losses(self.model, thetas, data), 0)

    def _train(self, theta: Params, q: Tensor, data: Data, numbered: Data, rng: Stream) -> Params:
        # Batches carry the numbers of their samples, so that each q meets its own sample.
        def weighted(w: Params, batch: Data) -> Tensor:
            losses = self.model.sample_losses(self.model(w, batch.x), data.y[batch.y])
            return (losses * q[batch.y] * batch.mask).sum() / batch.num

        return minimise(weighted, theta, numbered, rng, self.config.local)               # [C3]

    def choose(self, shared: Any, state: ClientState, data: Data) -> Any:
        """A new client's weights: EM on its training data, the components fixed ([C1], [C2] of each step)."""
        if not isinstance(shared, ForNewcomer):
            return shared
        pi = state.pi
        for _ in range(EM_STEPS):
            pi = (self.responsibilities(shared.thetas, pi, data) * data.mask).sum(1) / data.num
        return Fitted(shared.thetas, pi)

    def predict(self, shared: Any, state: ClientState, x: Tensor) -> Tensor:
        """Outputs whose loss is that of the mixture of the components' probabilities.

        Logarithms of probabilities for classes, log-odds for a binary task; for regression the
        mean of the mixture.
        """
        outputs = torch.stack([self.model(theta, x) for theta in shared.thetas])
        pi = shared.pi if isinstance(shared, Fitted) else state.pi
        log_pi = pi.log()[:, None, None]
        if self.model.task == "regression":
            return (log_pi.exp() * outputs).sum(0)
        if self.model.task == "binary":
            yes, no = (torch.logsumexp(log_pi + F.logsigmoid(s * outputs), 0) for s in (1, -1))
            return yes - no
        return torch.logsumexp(log_pi + torch.log_softmax(outputs, -1), 0)

    def work(self, order: Any, n: int) -> int:
        """Every component takes a whole local training."""
        return self.config.num_components * self.config.local.work(n)
