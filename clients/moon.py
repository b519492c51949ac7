"""MOON, client half. The algorithm box is in strategies/moon.py."""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from fedpers.families.global_model.client import GlobalModelClient, Weights
from fedpers.learning.losses import Contrast, Loss
from fedpers.method import Data, LocalConfig, Model, Params, Stream, Work, above, bounds, minimise, record


@dataclass(frozen=True)
class MoonConfig:
    """Hyper-parameters of MOON, with the paper's letters."""

    mu: float = 1.0                       # μ: weight of the contrastive loss
    tau: float = 0.5                      # τ: its temperature
    local: LocalConfig = field(default_factory=LocalConfig)

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        return [*bounds(self, mu=(0, None)), *above(self, tau=0)]


@record
class ClientState:
    """The client's model after its last local training."""

    previous: Params


@dataclass(frozen=True)
class Contrastive:
    """The loss, plus μ times ℓ_con of the features under the global and the client's previous model."""

    model: Model
    mu: float
    tau: float
    shared: Params
    previous: Params

    def __call__(self, w: Params, batch: Data) -> Tensor:
        z = self.model.body(w, batch.x)
        near, far = (cosine(z, other) / self.tau for other in self.others(batch))
        losses = F.softplus(far - near)          # -log(e^near / (e^near + e^far))
        contrast = (losses * batch.mask).sum() / batch.num                               # [C2]
        return self.model.head_loss(w, z, batch) + self.mu * contrast

    def others(self, batch: Data) -> tuple[Tensor, Tensor]:
        """The features [n, M] under the global and under the previous model."""
        near, far = (self.model.body(p, batch.x).detach() for p in (self.shared, self.previous))
        return near, far

    @property
    def beside(self) -> Contrast:
        """For the kernel, which asks for the features of all samples once."""
        return Contrast(self.mu, self.tau, self.others)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """The cosine of the angle between rows, [n]; 0 where a row is 0, and smooth there."""
    lengths = a.square().sum(1).clamp(min=1e-16) * b.square().sum(1).clamp(min=1e-16)
    return (a * b).sum(1) * torch.rsqrt(lengths)


class MoonClient(GlobalModelClient):
    """Trains the received model towards its features, and away from those of its own last model."""

    config: MoonConfig

    def initial_state(self, params: Params, data: Data, rng: Stream) -> ClientState:
        """Before the first training there is the initial model alone."""
        return ClientState(params)

    def answer(  # type: ignore[override]
        self, order: Weights, state: ClientState, data: Data, rng: Stream
    ) -> tuple[Weights, ClientState]:
        """One local training from the received weights."""
        h = self.config
        loss: Loss = self.model.loss                                                     # [C1]
        if h.mu:
            loss = Contrastive(self.model, h.mu, h.tau, order.params, state.previous)
        w = minimise(loss, order.params, data, rng, h.local)                             # [C3]
        return Weights(w), ClientState(w)                                                # [C4]

    def work(self, order: Weights, n: int) -> Work:
        """As many sample gradients as the local training takes, each beside features of two other models."""
        gradients = self.config.local.work(n)
        return Work(gradients, forwards=2 * gradients if self.config.mu else 0)
