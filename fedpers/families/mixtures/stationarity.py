"""Descent in blocks, parameters and points of simplices: the iterate to take, the way to go."""

from typing import Any

import numpy as np
from torch import Tensor

from fedpers.core.params import Params, sq_norm
from fedpers.core.pytree import record


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


def stationarity(slope: Params, C: Tensor, new: Tensor, eta: float) -> float:
    """‖∇_θ F‖² + ‖(C - C⁺)/eta‖₁² (PPFL, theorems 1 and 2), from full gradients; 0 at a stationary point.

    Args:
        slope: ∇_θ F.
        C, new: [N, K], memberships, and what a step at rate `eta` makes of them. At rate 0 they count 0.
    """
    reach = float((C - new).abs().sum()) / eta if eta > 0 else 0.0
    return float(sq_norm(slope)) + reach**2
