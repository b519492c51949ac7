"""FedALA restated in NumPy: one hidden ReLU layer, the head mixed, full-batch steps."""

import numpy as np

from tests.oracles.blocks import average, descend, sizes
from tests.oracles.pflego import features, gradients


def loss(theta, head, x, y):
    """Mean cross entropy."""
    z = features(theta, x) @ head["w"].T + head["b"]
    return np.mean(np.log(np.exp(z).sum(1)) - z[np.arange(len(y)), y])


def learn(body, head, own, W, x, y, eta, threshold, settled):
    """W of the head; `body` and `head` are the received ones, `own` is the client's head."""
    losses = []
    while len(losses) < (1 if settled else 100):
        mixed = {k: own[k] + (head[k] - own[k]) * W[k] for k in W}
        g, _ = gradients(body, mixed, x, y)
        W = {k: np.clip(W[k] - eta * g[k] * (head[k] - own[k]), 0, 1) for k in W}
        losses.append(loss(body, {k: own[k] + (head[k] - own[k]) * W[k] for k in W}, x, y))
        if len(losses) > 10 and np.std(losses[-10:]) < threshold:
            break
    return W


def fedala_round(body, head, clients, data, drawn, rate, steps, eta, threshold):
    """One round; clients: {i: (own head, W, visits)}; drawn: {i: rows}. Returns (body, head)."""
    bodies, heads = [], []
    for i, rows in drawn.items():
        own, W, visits = clients[i]
        x, y = data[i]
        if visits:
            W = learn(body, head, own, W, x[rows], y[rows], eta, threshold, visits > 1)
        mixed = {k: own[k] + (head[k] - own[k]) * W[k] for k in W}
        theta, phi = descend(body, mixed, x, y, rate, rate, steps)
        clients[i] = phi, W, visits + 1
        bodies.append(theta)
        heads.append(phi)
    n = [sizes(data)[i] for i in drawn]
    return average(bodies, n), average(heads, n)
