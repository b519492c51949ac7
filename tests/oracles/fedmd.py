"""FedMD restated in NumPy for one hidden ReLU layer: plain loops, explicit gradients."""

import numpy as np

from tests.oracles.pflego import features, softmax_minus_onehot


def outputs(model, x):
    """Logits [n, K] of (body, head)."""
    body, head = model
    return features(body, x) @ head["w"].T + head["b"]


def labels(logits, y):
    """d(mean cross entropy) / d(logits)."""
    return softmax_minus_onehot(logits, y) / len(y)


def consensus(logits, wanted):
    """d(mean |logits - wanted|) / d(logits), over samples and outputs; a square's within 0.001."""
    return np.clip((logits - wanted) / 1e-3, -1, 1) / logits.size


def train(model, x, target, slope, rate, batches):
    """(body, head) after a step of SGD on each list of rows; `slope` is one of the two above."""
    for rows in batches:
        body, head = model
        z, d = features(body, x[rows]), slope(outputs(model, x[rows]), target[rows])
        hidden = (d @ head["w"]) * (z > 0)
        body = {"w": body["w"] - rate * hidden.T @ x[rows], "b": body["b"] - rate * hidden.sum(0)}
        model = body, {"w": head["w"] - rate * d.T @ z, "b": head["b"] - rate * d.sum(0)}
    return model
