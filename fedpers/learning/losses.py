"""Losses made of a loss: with a proximal term, or with some parameters held fixed.

They are objects and not closures, so that a kernel can read their parts.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

from torch import Tensor

from fedpers.core.data import Data
from fedpers.core.params import Params, dot, sq_norm
from fedpers.core.tasks import TASKS
from fedpers.learning.kernels.plan import CONTRAST, PULL, TWO_HEADS, Extra

Loss = Callable[[Params, Data], Tensor]


def second_derivative(task: str, num_outputs: int) -> float:
    """A bound of the second derivative of a sample's loss in its outputs; nan where nobody knows one."""
    bound = TASKS[task].second if task in TASKS else None
    return math.nan if bound is None else bound(num_outputs)


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
    proximal = loss if type(loss) is Proximal else Proximal(loss, 0.0, 0.0, {})
    return proximal, proximal.loss if type(proximal.loss) is Frozen else Frozen(proximal.loss, {})


# ---- what a loss may have beside its model's own, and a kernel computes as well -----------------------


@dataclass(frozen=True)
class Pull:
    """weight · each_i · mean_k (z_ik - near_ik)² of features z, averaged over a batch's samples."""

    weight: float
    rows: Callable[[Data], tuple[Tensor, Tensor]]  # (near [n, M], each [n]) of n samples

    @property
    def extra(self) -> Extra:
        """The numbers that the C kernel gets besides the rows."""
        return Extra(PULL, self.weight)


@dataclass(frozen=True)
class Contrast:
    """weight · softplus((cos(z_i, far_i) - cos(z_i, near_i)) / τ) of features z, averaged over a batch."""

    weight: float
    tau: float
    rows: Callable[[Data], tuple[Tensor, Tensor]]  # (near [n, M], far [n, M]) of n samples

    @property
    def extra(self) -> Extra:
        """The numbers that the C kernel gets besides the rows."""
        return Extra(CONTRAST, self.weight, self.tau)


@dataclass(frozen=True)
class SecondHead:
    """The model's own loss at outputs + shift, and of two heads' outputs together, which moves the second."""

    prefix: str  # before the names of the second head
    shift: Tensor  # [K]

    def rows(self, data: Data) -> tuple[Tensor, ...]:
        """The same shift for all samples."""
        return (self.shift,)

    @property
    def extra(self) -> Extra:
        """The numbers that the C kernel gets besides the shift."""
        return Extra(TWO_HEADS, prefix=self.prefix)


class Known(Protocol):
    """A loss that a C kernel knows."""

    model: Any

    @property
    def beside(self) -> Pull | Contrast | SecondHead:
        """Its terms besides `model.loss`."""


def is_known(loss: Any) -> TypeGuard[Known]:
    """Whether a C kernel knows the loss."""
    return states(loss, "beside") and type(loss.beside) in (Pull, Contrast, SecondHead)


def states(loss: Any, name: str) -> bool:
    """Whether the loss's own class has `name`: what a class inherits is true of its parent, not of it."""
    return name in type(loss).__dict__
