"""Step sizes, probabilities and momenta that the theory gives from the constants of F."""

import math

from fedpers.core.errors import ConfigError
from fedpers.core.pytree import record
from fedpers.families.unified.objective import Constants


@record("unified.ACDRates")
class ACDRates:
    """What accelerated coordinate descent (Algorithm 2) needs."""

    p_w: float  # probability of the w-block
    theta: float  # weight of z in x
    eta: float  # 1/θ
    nu: float  # μ/S²
    L_w: float
    L_b: float


@record("unified.LSGDRates")
class LSGDRates:
    """What local SGD (Algorithm 1) needs."""

    eta: float  # step size, of the first step where it decreases
    mu: float | None  # of F; None where nothing depends on it

    def steps(self, k: int, tau: int, decreasing: bool) -> tuple[float, ...]:
        """η_k to η_{k+τ-1}: η, or η_k = 1/(1/η + μk) (Theorem 4, whose constant is 1/(ημ) = b_0 τ + 1)."""
        if not decreasing:
            return (self.eta,) * tau
        return tuple(1 / (1 / self.eta + (self.mu or 0.0) * i) for i in range(k, k + tau))

    def shares(self, k: int, tau: int) -> tuple[float, ...]:
        """Shares of x_k to x_{k+τ-1} in the running average with weights (1-ημ)^-(k+1) (Theorem 1).

        The share of x_i is q_i = 1/Σ_{j=0..i} (1-ημ)^j: mean_i = (1-q_i) mean_{i-1} + q_i x_i.
        """
        q = self.eta * (self.mu or 0.0)
        return tuple(
            q / -math.expm1((i + 1) * math.log1p(-q)) if q else 1 / (i + 1) for i in range(k, k + tau)
        )


@record("unified.Rates")
class Rates:
    """What the stochastic coordinate methods (Algorithms 3 to 7) need."""

    p_w: float
    rho: float  # probability of a new anchor
    eta: float  # step size
    theta_1: float  # weight of z in x
    theta_2: float  # weight of v in x
    gamma: float  # step size of z
    nu: float  # 1 - γμ
    theta: float  # ASCD's weight of z in x


def block_probability(L_w: float, L_b: float, given: float | None) -> float:
    """The probability of the w-block: `given`, else L_w/(L_w + L_b); 0 or 1 if a block is missing.

    Raises:
        ConfigError: a given probability would leave one of two blocks out.
    """
    if L_w == 0 or L_b == 0:
        return float(L_b == 0)
    if given is not None and not 0 < given < 1:
        raise ConfigError(
            f"p_w={given}: must be between 0 and 1, because there are shared and private parameters"
        )
    return L_w / (L_w + L_b) if given is None else given


def acd_rates(c: Constants, p_w: float | None = None) -> ACDRates:
    """p_w = √L_w/S, ν = μ/S², θ²/(1-θ) = ν; for another p_w, S² = max(L_w/p_w², L_b/p_b²)."""
    _positive(c.mu)
    p = block_probability(math.sqrt(c.L_w), math.sqrt(c.L_b), p_w)
    nu = c.mu / _largest(c.L_w, p**2, c.L_b, (1 - p) ** 2)
    theta = (math.sqrt(nu**2 + 4 * nu) - nu) / 2
    return ACDRates(p, theta, 1 / theta, nu, c.L_w, c.L_b)


def coordinate_rates(
    c: Constants,
    n: float,
    *,
    p_w: float | None = None,
    rho: float | None = None,
    refresh: str = "w",
    eta: float | None = None,
    momentum: bool = True,
) -> Rates:
    """Theorems 8 and 9; ρ = p_w/n (optimal in communication) or p_β/n (refresh="beta").

    Without `momentum` (SCD, SVRCD) neither θ nor γ is used, and μ may be 0.
    """
    p = block_probability(c.cL_w, c.cL_b, p_w)
    step = 1 / (8 * _largest(c.cL_w, p, c.cL_b, 1 - p)) if eta is None else eta
    p_ref = (p or 1.0) if refresh == "w" else ((1 - p) or 1.0)
    rho = min(1.0, p_ref / n) if rho is None else rho
    if not momentum:
        return Rates(p, rho, step, 0.0, 0.0, 0.0, 1.0, 0.0)
    _positive(c.mu)
    theta_1 = min(0.5, math.sqrt(step * c.mu * max(0.5, 0.5 / rho)))
    gamma = 1 / max(2 * c.mu, 4 * theta_1 / step)
    return Rates(p, rho, step, theta_1, 0.5, gamma, 1 - gamma * c.mu, min(0.8, 1 / step))


def lsgd_step(c: Constants, tau: int, *, beta_scale: float = 1.0, batch_size: int = 0) -> float:
    """min{1/(4 max{L_w, κ L_β}), 1/(8√(3e)(τ-1) L_w)}, with κ = `beta_scale` (M·κ_β of the box).

    Theorem 1 prints L_β alone in the first bound, where its proof (Lemma 5) has the larger of both. Of
    B samples drawn with replacement the expected smoothness (1 - 1/B) L + script L/B stands for L; B = 0
    is the whole gradient.
    """
    share = 1 / batch_size if batch_size else 0.0
    L_w = (1 - share) * c.L_w + share * c.cL_w
    L_b = (1 - share) * c.L_b + share * c.cL_b
    bound = 1 / (4 * max(L_w, beta_scale * L_b))
    return min(bound, 1 / (8 * math.sqrt(3 * math.e) * (tau - 1) * L_w)) if tau > 1 and L_w else bound


def _largest(a: float, p: float, b: float, q: float) -> float:
    return max([x / y for x, y in ((a, p), (b, q)) if x > 0])


def _positive(mu: float) -> None:
    if not mu > 0:
        raise ConfigError(
            f"momentum needs a strongly convex objective, and its mu is {mu}; give method.objective.mu, "
            "a small surrogate such as 0.01, or method.objective.l2"
        )
