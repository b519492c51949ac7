"""(epsilon, delta) of a Gaussian mechanism whose noise is 1/μ sensitivities, exactly and both ways.

Balle, Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018, Theorem 8:
δ(ε) = Φ(μ/2 - ε/μ) - exp(ε) Φ(-μ/2 - ε/μ). It grows with μ and falls with ε.
"""

import math

RTOL = 1e-9  # precision of the search; its result is rounded towards more privacy


def epsilon_of(mu: float, delta: float) -> float:
    """The least ε at this δ; 0 if no noise is needed for it."""
    from scipy.optimize import brentq

    if delta_of(0.0, mu) <= delta:
        return 0.0
    enough = mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta))  # by Mironov, CSF 2017
    found = brentq(lambda eps: delta_of(eps, mu) - delta, 0.0, enough, xtol=1e-12, rtol=RTOL)
    return float(found) * (1 + 4 * RTOL)


def mu_of(epsilon: float, delta: float) -> float:
    """The largest μ that is (ε, δ)-private, rounded down."""
    from scipy.optimize import brentq

    high = 1.0
    while delta_of(epsilon, high) < delta:
        high *= 2
    low = high
    while delta_of(epsilon, low) > delta:
        low /= 2
    found = brentq(lambda mu: delta_of(epsilon, mu) - delta, low, high, xtol=1e-15, rtol=RTOL)
    return float(found) * (1 - 16 * RTOL)


def delta_of(epsilon: float, mu: float) -> float:
    """δ at this ε, without overflow."""
    from scipy.special import log_ndtr

    above = math.exp(log_ndtr(mu / 2 - epsilon / mu))
    return above - math.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))
