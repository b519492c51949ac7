"""FedProto restated in NumPy: one hidden ReLU layer, full-batch steps, class by class."""

import numpy as np

from tests.oracles.pflego import features, gradients


def train(theta, head, x, y, prototypes, rate, steps, lam):
    """(theta, head) after local training; `prototypes` is {class: vector}."""
    for _ in range(steps):
        g_head, g_body = gradients(theta, head, x, y)
        z = features(theta, x)
        slope = np.zeros_like(z)
        for row, label in enumerate(y):
            if label in prototypes:
                slope[row] = 2 * (z[row] - prototypes[label]) / z.shape[1] / len(y)
        hidden = lam * slope * (z > 0)
        theta = {
            "w": theta["w"] - rate * (g_body["w"] + hidden.T @ x),
            "b": theta["b"] - rate * (g_body["b"] + hidden.sum(0)),
        }
        head = {k: head[k] - rate * g_head[k] for k in head}
    return theta, head


def fedproto_round(models, prototypes, data, chosen, rate, steps, lam):
    """One round; `models` are (theta, head) of each client. Returns (models, prototypes)."""
    models, sums, counts = list(models), {}, {}
    for i in chosen:
        x, y = data[i]
        models[i] = train(*models[i], x, y, prototypes, rate, steps, lam)
        for row, label in zip(features(models[i][0], x), y, strict=True):
            sums[label] = sums.get(label, 0) + row
            counts[label] = counts.get(label, 0) + 1
    return models, prototypes | {c: sums[c] / counts[c] for c in sums}
