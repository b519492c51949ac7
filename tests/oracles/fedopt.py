"""The server's step of FedAvgM, FedAdam and FedYogi, restated in NumPy, entry by entry."""

import numpy as np


def start(x, tau=0.0):
    """(x, m, v) before round 1, of a dict of arrays."""
    return x, {k: np.zeros_like(a) for k, a in x.items()}, {k: np.full_like(a, tau**2) for k, a in x.items()}


def momentum_step(x, m, v, new, n, eta, beta):
    """FedAvgM after the models `new` of clients with n samples each."""
    for k in x:
        delta = sum(w * (a[k] - x[k]) for w, a in zip(n, new, strict=True)) / sum(n)
        m = m | {k: beta * m[k] + delta}
        x = x | {k: x[k] + eta * m[k]}
    return x, m, v


def adaptive_step(x, m, v, new, n, rule, eta, beta1, beta2, tau):
    """FedAdam or FedYogi."""
    for k in x:
        delta = sum(w * (a[k] - x[k]) for w, a in zip(n, new, strict=True)) / sum(n)
        if rule == "adam":
            v = v | {k: beta2 * v[k] + (1 - beta2) * delta**2}
        else:
            v = v | {
                k: np.where(v[k] < delta**2, v[k] + (1 - beta2) * delta**2, v[k] - (1 - beta2) * delta**2)
            }
        m = m | {k: beta1 * m[k] + (1 - beta1) * delta}
        x = x | {k: x[k] + eta * m[k] / (np.sqrt(v[k]) + tau)}
    return x, m, v
