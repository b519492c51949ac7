"""Losses made of a loss: with a proximal term, or with some parameters held fixed.

They are objects and no closures, so that a kernel can see what they are made of.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from fedpers.core.data import Data
from fedpers.core.params import Params, dot, sq_norm

Loss = Callable[[Params, Data], Tensor]

# Bounds of the eigenvalues of a sample's loss's Hessian in its outputs: of p(1 - p), and of diag(p) - pp'
# (Böhning, "Multinomial logistic regression algorithm", Ann. Inst. Stat. Math. 44, 1992)
SECOND = {"binary": 0.25, "classification": 0.5}


def second_derivative(task: str, num_outputs: int) -> float:
    """A bound of the second derivative of a sample's loss in its outputs; exact for the mean square."""
    return SECOND.get(task, 2 / num_outputs)


def pull(w: Params, ubar: float | Tensor, cbar: Params) -> Tensor:
    """½ū‖w‖² - ⟨w, c̄⟩: half of Σ_s u_s‖w - c_s‖² up to a constant, for ū = Σu_s and c̄ = Σu_s c_s.

    Its gradient in w is ūw - c̄, at the price of one pass however many models pull.
    """
    return 0.5 * ubar * sq_norm(w) - dot(w, cbar)


@dataclass(frozen=True)
class Proximal:
    """The loss plus lam times `pull`."""

    loss: Loss
    lam: float
    ubar: float | Tensor
    cbar: Params

    def __call__(self, w: Params, batch: Data) -> Tensor:
        return self.loss(w, batch) + self.lam * pull(w, self.ubar, self.cbar)


def proximal(loss: Loss, mu: float, center: Params) -> Loss:
    """loss(w) + μ/2 ‖w - center‖², less the constant μ/2 ‖center‖²; the loss itself for μ = 0."""
    return soft_proximal(loss, mu, 1.0, center)


def soft_proximal(loss: Loss, lam: float, ubar: float | Tensor, cbar: Params) -> Loss:
    """loss(w) + λ/2 Σ_s u_s ‖w - c_s‖² for several centers, by ū and c̄ as in `pull`, less a constant.

    The loss itself for λ = 0.
    """
    return Proximal(loss, lam, ubar, cbar) if lam else loss


@dataclass(frozen=True)
class Frozen:
    """The loss as a function of some parameters; the others are `fixed`."""

    loss: Loss
    fixed: Params

    def __call__(self, w: Params, batch: Data) -> Tensor:
        return self.loss(self.fixed | w, batch)


def taken_apart(loss: Loss) -> tuple[Proximal, Frozen]:
    """A loss as a proximal term (of weight 0 if it has none) on a loss with frozen parameters (or none)."""
    proximal = loss if isinstance(loss, Proximal) else Proximal(loss, 0.0, 0.0, {})
    return proximal, proximal.loss if isinstance(proximal.loss, Frozen) else Frozen(proximal.loss, {})
