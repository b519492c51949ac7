"""Objectives of one shared model that each client adapts to its data before it predicts."""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpers.core import derivatives
from fedpers.core.bounds import above, bounds
from fedpers.core.data import Data
from fedpers.core.params import Params, add, sq_dist, sub
from fedpers.core.work import Work
from fedpers.families.unified.objective import Base, Constants, Objective, Of, Settings
from fedpers.learning.gradients import grad


@dataclass(frozen=True)
class MoreauSettings(Settings):
    """Keys of Moreau."""

    lam: float = 0.5  # λ: penalty (λ/2)‖w - b‖²
    prox_steps: int = 50  # gradient steps of the inner minimisation
    prox_lr: float = 0.1  # their rate

    def check(self) -> list[str]:
        """Problems of values."""
        return [*super().check(), *bounds(self, lam=(0, None), prox_steps=(1, None)), *above(self, prox_lr=0)]


@dataclass(frozen=True)
class MAMLSettings(Settings):
    """Keys of MAML."""

    alpha: float = 0.1  # α: the step that a client makes

    def check(self) -> list[str]:
        """Problems of values."""
        return [*super().check(), *bounds(self, alpha=(0, None))]


class Adapted(Objective):
    """There is no β_m: a client's own model is made of w and its data (`adapted`)."""

    has_beta = False
    finite_sum = False
    adapts = True

    def start(self, params: Params) -> tuple[Params, Params]:
        """The model is shared."""
        return params, {}

    def personal(self, w: Params, beta: Params) -> Params:
        """The shared model; a client's own needs its data."""
        return w

    def grads(self, w: Params, beta: Params, data: Data) -> tuple[Params, Params]:
        """There is no β_m."""
        return self.grad_w(w, beta, data), {}

    def gradient_work(self, of: Of) -> Work:
        """That of w alone."""
        return Work() if of == "beta" else self.work_in_w

    @property
    @abstractmethod
    def work_in_w(self) -> Work:
        """What a gradient in w costs for one sample."""


class Moreau(Adapted):
    """Moreau envelope (eq. 10; pFedMe, implicit MAML): min_b f'(b) + (λ/2)‖w - b‖², no β_m.

    The inner minimisation is `prox_steps` gradient steps from w; with it solved, the gradient is
    λ(w - b), whatever b's own dependence on w.
    """

    settings = MoreauSettings

    @property
    def work_in_w(self) -> Work:
        """The inner steps, and the loss where they end."""
        return Work(self.config.prox_steps, forwards=1)

    def value(self, w: Params, beta: Params, data: Data) -> Tensor:
        """The envelope, at the inner minimiser."""
        b = self.prox(w, data)
        return self.loss(b, data) + self.config.lam / 2 * sq_dist(w, b)

    def prox(self, w: Params, data: Data) -> Params:
        """argmin_b f'(b) + (λ/2)‖w - b‖², the personal model."""
        center = {k: v.detach() for k, v in w.items()}
        slope, b = grad(self.loss), center
        for _ in range(self.config.prox_steps):
            pull = add(slope(b, data), sub(b, center), self.config.lam)
            b = {k: v.detach() for k, v in add(b, pull, -self.config.prox_lr).items()}
        return b

    def adapted(self, w: Params, data: Data) -> Params:
        """The proximal point."""
        return self.prox(w, data)

    def constants(self, base: Base) -> Constants:
        """Of an envelope: aλ/(a+λ) for a = μ' and a = L'."""
        lam = self.config.lam
        of = [float(a * lam / (a + lam)) if lam else 0.0 for a in (base.mu, base.L_w, base.cL_w)]
        return Constants(of[0], of[1], 0.0, of[2], 0.0)


class MAML(Adapted):
    """Explicit MAML (eq. 19; Per-FedAvg): f'(w - α ∇f'(w)), good after one step. Not convex.

    Only local SGD has a theory for it, with whole gradients here: one batch in both f' would be biased.
    """

    settings = MAMLSettings
    convex = False

    @property
    def work_in_w(self) -> Work:
        """The step, the slope at its end, and a product with the Hessian, which counts as two gradients."""
        return Work(4)

    def value(self, w: Params, beta: Params, data: Data) -> Tensor:
        """f' after the step."""
        return self.loss(self.adapted(w, data), data)

    def grad_w(self, w: Params, beta: Params, data: Data) -> Params:
        """(I - α ∇²f'(w)) ∇f'(w - α ∇f'(w))."""
        at_end = self._slope(self.adapted(w, data), data)
        bent: Params = torch.func.jvp(lambda v: self._slope(v, data), (w,), (at_end,))[1]
        return add(at_end, bent, -self.config.alpha)

    def adapted(self, w: Params, data: Data) -> Params:
        """w - α ∇f'(w)."""
        return add(w, self._slope(w, data), -self.config.alpha)

    def _slope(self, params: Params, data: Data) -> Params:
        found: Params = derivatives.grad(self.loss)(params, data)  # differentiable, unlike `loss_gradient`
        return found

    def constants(self, base: Base) -> Constants:
        """Not strongly convex; the plain loss's smoothness, which sets no step (`eta` is given)."""
        return Constants(0.0, float(base.L_w), 0.0, float(base.cL_w), 0.0)
