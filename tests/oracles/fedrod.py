"""FedRoD restated in NumPy: one hidden ReLU layer, full-batch steps."""

import numpy as np

from tests.oracles.blocks import average, sizes
from tests.oracles.pflego import features, softmax_minus_onehot


def fedrod_round(body, head, own, data, chosen, rate, steps):
    """One round; body, head and each of `own` are {"w", "b"}. Returns (body, head, own)."""
    own, bodies, heads = list(own), [], []
    for m in chosen:
        theta, phi, psi = body, head, own[m]
        x, y = data[m]
        prior = np.array([(y == c).sum() for c in range(len(phi["b"]))])
        for _ in range(steps):
            z = features(theta, x)
            g = z @ phi["w"].T + phi["b"]
            with np.errstate(divide="ignore"):
                d = softmax_minus_onehot(g + np.log(prior), y) / len(y)
            e = softmax_minus_onehot(g + z @ psi["w"].T + psi["b"], y) / len(y)
            hidden = (d @ phi["w"]) * (z > 0)
            theta = {"w": theta["w"] - rate * hidden.T @ x, "b": theta["b"] - rate * hidden.sum(0)}
            phi = {"w": phi["w"] - rate * d.T @ z, "b": phi["b"] - rate * d.sum(0)}
            psi = {"w": psi["w"] - rate * e.T @ z, "b": psi["b"] - rate * e.sum(0)}
        own[m] = psi
        bodies.append(theta)
        heads.append(phi)
    n = [sizes(data)[m] for m in chosen]
    return average(bodies, n), average(heads, n), own
