"""MOON restated in NumPy: one hidden ReLU layer, full-batch steps, the cosine's derivative by hand."""

import numpy as np

from tests.oracles.blocks import average, sizes
from tests.oracles.pflego import features, gradients


def cosine_and_slope(z, other):
    """(cos, d cos / d z) of rows."""
    long, far = np.linalg.norm(z, axis=1), np.linalg.norm(other, axis=1)
    cos = (z * other).sum(1) / (long * far)
    return cos, other / (long * far)[:, None] - z * (cos / long**2)[:, None]


def moon_round(body, head, previous, data, chosen, rate, steps, mu, tau):
    """One round; `previous` has each client's last body. Returns (body, head, previous)."""
    previous, bodies, heads = list(previous), [], []
    for i in chosen:
        theta, phi, (x, y) = body, head, data[i]
        for _ in range(steps):
            g_head, g_body = gradients(theta, phi, x, y)
            z = features(theta, x)
            near, up = cosine_and_slope(z, features(body, x))
            far, down = cosine_and_slope(z, features(previous[i], x))
            push = 1 / (1 + np.exp((near - far) / tau)) / tau / len(y)
            hidden = mu * push[:, None] * (down - up) * (z > 0)
            theta = {
                "w": theta["w"] - rate * (g_body["w"] + hidden.T @ x),
                "b": theta["b"] - rate * (g_body["b"] + hidden.sum(0)),
            }
            phi = {k: phi[k] - rate * g_head[k] for k in phi}
        previous[i] = theta
        bodies.append(theta)
        heads.append(phi)
    n = [sizes(data)[i] for i in chosen]
    return average(bodies, n), average(heads, n), previous
