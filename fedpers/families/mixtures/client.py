"""What a client of mixtures does beside its training: it predicts, finds its place, and measures."""

from abc import ABC
from dataclasses import replace
from typing import Any

from torch import Tensor

from fedpers.core.data import Data
from fedpers.core.rng import Stream
from fedpers.core.work import Work
from fedpers.families.mixtures.messages import (
    BothBlocks,
    FullGradients,
    MembershipBlock,
    Newcomer,
    Personal,
    Slopes,
    ThetaBlock,
    Trained,
    TrainedTheta,
)
from fedpers.families.mixtures.mixture import Mixture
from fedpers.families.mixtures.simplex import mirror_step
from fedpers.flower.client import PersonalizedClient
from fedpers.learning.gradients import grad


class MixtureClient(PersonalizedClient, ABC):
    """One of many that blend the same canonical models; a method gives `answer`."""

    config: Any
    mixture = property(lambda self: Mixture.of(self.config, self.model))

    def slope(self, order: BothBlocks | MembershipBlock | FullGradients, batch: Data) -> Tensor:
        """p_i ∇_c f_i on a batch, [K]."""
        return order.p * self.mixture.membership_gradient(order.theta, batch, order.c)

    def measured(self, order: FullGradients, data: Data) -> Slopes:
        """What the server asks for to measure stationarity; nothing moves."""
        g = self.slope(order, data) + 2 * order.pull
        c = mirror_step(order.c, g, order.eta_2, self.config.floor)
        at = order.c if self.config.algorithm == "rbcd" else c
        return Slopes(grad(self.mixture.loss_at(at))(order.theta, data), c)

    def trains_without_momentum(self, order: Any) -> bool:
        """Neither a block of memberships nor a measure has local steps."""
        return isinstance(order, MembershipBlock | FullGradients)

    def predict(self, shared: Personal | Newcomer, state: Any, x: Tensor) -> Tensor:
        """The mixture by the client's membership."""
        return self.mixture.outputs(shared.theta, shared.c, x)

    def adapts_to(self, shared: Personal | Newcomer) -> bool:
        """New clients find their membership first; others may fine-tune theirs to the newest models."""
        return self._steps(shared) > 0

    def adapt(self, shared: Personal | Newcomer, state: Any, data: Data, rng: Stream) -> tuple[Personal, Any]:
        """Mirror steps with θ frozen and λ = 0; the server is told nothing."""
        h = self.config
        c = self.mixture.settle(shared.theta, data, shared.c, self._steps(shared), h.eta_2, h.floor)
        return Personal(shared.theta, c), state

    def _steps(self, shared: Personal | Newcomer) -> int:
        h = self.config
        return h.new_steps if isinstance(shared, Newcomer) else h.finetune_steps

    def local_model(self, order: Any, reply: Any) -> Personal:
        """A participant predicts with what it has just trained."""
        theta = reply.theta if isinstance(reply, Trained | TrainedTheta) else order.theta
        return Personal(theta, reply.c if isinstance(reply, Trained) else order.c)

    def work(self, order: Any, n: int) -> Work:
        """Samples of the gradients in both blocks, times the networks that run for one.

        The gradient in c needs outputs alone where outputs are mixed; where parameters are, it is made
        of the gradient in them.
        """
        local, kind = self.config.local, type(order)
        one_step = replace(local, steps=1).work(n) if kind is MembershipBlock else 0
        in_c = n if kind in (BothBlocks, FullGradients) else one_step
        in_theta = local.work(n) if kind in (BothBlocks, ThetaBlock) else n if kind is FullGradients else 0
        if self.mixture.one_pass:
            return Work(in_c + in_theta)
        networks = self.mixture.passes(self.config.num_canonical)
        return Work(networks * in_theta, forwards=networks * in_c)
