"""FedEM, client half. The algorithm box is in strategies/fedem.py."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedpers.core.bounds import bounds
from fedpers.families.clustered.centers import center_losses
from fedpers.families.disclosures import COMPONENTS
from fedpers.families.mixtures.em import fit_weights, responsibilities
from fedpers.families.starts import Start
from fedpers.learning.mixing import mixture
from fedpers.learning.weighed import WeightedLoss
from fedpers.method import Data, LocalConfig, Params, PersonalizedClient, Stream, Work, minimise, record


@dataclass(frozen=True)
class FedEMConfig:
    """Hyper-parameters of FedEM."""

    num_components: int = 3               # M
    local: LocalConfig = field(default_factory=LocalConfig)
    tell_weights: bool = False            # clients send π_t, which is kept in arrays.npz
    predict: Literal["mixture", "component"] = "mixture"  # component: the one of largest π_tm
    start: Start = "seeds"                # how the components start apart

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        return bounds(self, num_components=(1, None))


@record
class Components:
    """Order and reply: all components."""

    thetas: tuple[Params, ...]


@record
class Weighted:
    """What a client predicts with, and with `tell_weights` its reply: components and π_t, unencrypted."""

    thetas: tuple[Params, ...]
    told: Tensor             # [M]
    ranges: ClassVar = {"told": "simplex"}


@record
class ForNewcomer:
    """Order to predict, for a client that never trained: it has to find its weights."""

    thetas: tuple[Params, ...]


@record
class ClientState:
    """The client's mixture weights π_t; they leave the client only if `tell_weights` says so."""

    pi: Tensor               # [M], on the simplex


class FedEMClient(PersonalizedClient):
    """Weighs its samples by the components' responsibilities, then trains every component so weighted."""

    config: FedEMConfig
    disclosure = COMPONENTS
    private = ("pi",)
    reply_is_shared = True

    def initial_state(self, params: Params, data: Data, rng: Stream) -> ClientState:
        """Equal weights."""
        return ClientState(data.mask.new_full((M := self.config.num_components,), 1 / M))

    def answer(
        self, order: Components, state: ClientState, data: Data, rng: Stream
    ) -> tuple[Components | Weighted, ClientState]:
        """One E-step on all samples, then one local training of each component."""
        q = responsibilities(state.pi, center_losses(self.model, order.thetas, data))    # [C1]
        pi = (q * data.mask).sum(1) / data.num                                           # [C2]
        trained = tuple(minimise(WeightedLoss(self.model, q_m), theta, data, rng, self.config.local)
                        for theta, q_m in zip(order.thetas, q.unbind(0), strict=True))   # [C3]
        reply = Weighted(trained, pi) if self.config.tell_weights else Components(trained)
        return reply, ClientState(pi)                                                    # [C4]

    def choose(self, shared: Any, state: ClientState, data: Data) -> Weighted:
        """The client's π_t, for a new one where EM with fixed components ends; one-hot for one component."""
        pi = state.pi
        if isinstance(shared, ForNewcomer):
            losses = center_losses(self.model, shared.thetas, data)
            pi = fit_weights(pi, losses, data.mask)
        if self.config.predict == "component":
            pi = one_hot(pi.argmax(), len(shared.thetas)).to(pi)
        return Weighted(shared.thetas, pi)

    def predict(self, shared: Weighted, state: ClientState, x: Tensor) -> Tensor:
        """Outputs whose loss is that of the mixture of the components' probabilities.

        Logarithms of probabilities for classes, log-odds for a binary task; for regression the
        mean of the mixture.
        """
        outputs = torch.stack([self.model(theta, x) for theta in shared.thetas])
        return mixture(self.model, outputs, shared.told)

    @classmethod
    def exposed(cls, config: FedEMConfig) -> list[str]:
        """π_t, if it is to be sent."""
        return ["set method.tell_weights=false (else clients send π_t)"] * config.tell_weights

    def work(self, order: Any, n: int) -> Work:
        """Every component's losses, for the E-step, then a whole local training."""
        return Work(self.config.num_components * self.config.local.work(n), self.config.num_components * n)
