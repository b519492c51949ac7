"""FedAS restated in NumPy: one hidden ReLU layer, full-batch steps, sample by sample."""

import numpy as np

from tests.oracles.blocks import average, descend
from tests.oracles.pflego import features, gradients


def align(theta, before, x, y, rate, steps):
    """The body after steps towards the mean features that the body `before` gives the classes."""
    old = features(before, x)
    means = {c: old[y == c].mean(0) for c in set(y.tolist())}
    for _ in range(steps):
        z, g = features(theta, x), {k: np.zeros_like(v) for k, v in theta.items()}
        for row, (sample, label) in enumerate(zip(x, y, strict=True)):
            weight = 2 / z.shape[1] / (y == label).sum()
            slope = weight * (z[row] - means[label]) * (z[row] > 0)
            g["w"] += np.outer(slope, sample)
            g["b"] += slope
        theta = {k: theta[k] - rate * g[k] for k in theta}
    return theta


def fisher(theta, head, x, y, batches):
    """Σ over batches of all squared entries of the mean gradient."""
    total = 0.0
    for rows in batches:
        for part in gradients(theta, head, x[rows], y[rows]):
            total += sum((v**2).sum() for v in part.values())
    return total


def fedas_round(shared, own, data, batches, rates, steps):
    """(shared body, {client: (body, head)}, weights); `batches` are those of each client of the round."""
    bodies, weights, own = [], [], dict(own)
    for i, some in batches.items():
        before, head = own[i]
        theta = align(shared, before, *data[i], rates[0], steps[0])
        own[i] = descend(theta, head, *data[i], rates[1], rates[1], steps[1])
        bodies.append(own[i][0])
        weights.append(fisher(*own[i], *data[i], some))
    return average(bodies, weights), own, weights
