"""Descent in blocks, parameters and points of simplices: the iterate to take, the way to go."""

from typing import Any

import numpy as np

from fedpers.core.params import sq_dist
from fedpers.core.pytree import record
from fedpers.learning.optimizers import LocalConfig


@record("mixtures.Kept")
class Kept:
    """The value drawn so far."""

    value: Any
    total: float  # sum of all weights so far


def offer(kept: Kept | None, value: Any, weight: float, rng: np.random.Generator) -> Kept:
    """Take `value` with chance weight / (sum of weights so far), else keep what was kept.

    In the end each value is there with a chance proportional to its weight.
    """
    total = weight + (kept.total if kept else 0.0)
    if kept is None or rng.random() * total < weight:
        return Kept(value, total)
    return Kept(kept.value, total)


def block_weight(eta: float, rho: float, L_1: float, L_2: float) -> float:
    """The weight of an iterate of block coordinate descent at rate eta (PPFL, eq. 16).

    min_h eta ρ_h (1 - γ_h L_h), with γ = (4 eta, eta / 2), for blocks that are drawn with
    probabilities ρ = (rho, 1 - rho) and have gradients with Lipschitz constants L.
    """
    return eta * min(rho * (1 - 4 * eta * L_1), (1 - rho) * (1 - eta / 2 * L_2))


def stationarity(local: LocalConfig, n: float, eta: float, old: Any, new: Any) -> float:
    """‖∇_θ F‖² + ‖(C - C⁺)/eta‖₁² (PPFL, theorem 2), from a step on both blocks, theta and C.

    Local training on n samples stands for rate · steps · gradient: exact for one full gradient
    step, else the mean gradient along the steps. A block at rate 0 counts 0.
    """
    reach = local.lr * local.num_steps(int(n))
    slope = float(sq_dist(old.theta, new.theta)) / reach**2 if reach > 0 else 0.0
    return slope + (float((old.C - new.C).abs().sum()) / eta) ** 2 if eta > 0 else slope
