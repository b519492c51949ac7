"""FedDBE restated in NumPy: one hidden ReLU layer, full-batch steps; gradients written out."""

import numpy as np

from tests.oracles.blocks import average, descend, sizes
from tests.oracles.pflego import features, softmax_minus_onehot


def first_mean(body, head, data, rate, steps):
    """z̄^g before round 1: each client trains alone, and all samples of all clients count alike."""
    z = [features(descend(body, head, x, y, rate, rate, steps)[0], x) for x, y in data]
    return np.concatenate(z).mean(0)


def train(body, head, bias, x, y, common, rate, steps, kappa, mu):
    """(body, head, bias) after steps on the loss and the regularised running mean of features."""
    running = np.zeros(len(common))
    for _ in range(steps):
        z = features(body, x)
        running = (1 - mu) * running + mu * z.mean(0)
        d = softmax_minus_onehot((z + bias) @ head["w"].T + head["b"], y) / len(y)
        slope = d @ head["w"] + kappa * (running - common) / len(common) * mu / len(y)
        hidden = slope * (z > 0)
        body = {"w": body["w"] - rate * hidden.T @ x, "b": body["b"] - rate * hidden.sum(0)}
        step = (d @ head["w"]).sum(0)
        head = {"w": head["w"] - rate * d.T @ (z + bias), "b": head["b"] - rate * d.sum(0)}
        bias = bias - rate * step
    return body, head, bias


def feddbe_round(body, head, biases, data, chosen, common, rate, steps, kappa, mu):
    """One round; `biases` is a list, one a client. Returns (body, head, biases)."""
    biases, bodies, heads = list(biases), [], []
    for i in chosen:
        found = train(body, head, biases[i], *data[i], common, rate, steps, kappa, mu)
        bodies.append(found[0])
        heads.append(found[1])
        biases[i] = found[2]
    n = [sizes(data)[i] for i in chosen]
    return average(bodies, n), average(heads, n), biases
