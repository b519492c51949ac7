"""FedEM's client on multinomial logistic regression, restated in NumPy with plain loops."""

import numpy as np


def probabilities(theta, x):
    """Class probabilities [K] of one sample."""
    z = theta["w"] @ x + theta["b"]
    e = np.exp(z - z.max())
    return e / e.sum()


def client_round(thetas, pi, x, y, schedules, lr):
    """(trained components, π, q [n, M]); `schedules`: for each component a list of index arrays."""
    q = np.array(
        [
            [p * probabilities(th, a)[b] for p, th in zip(pi, thetas, strict=True)]
            for a, b in zip(x, y, strict=True)
        ]
    )
    q /= q.sum(1, keepdims=True)
    trained = []
    for m, (theta, schedule) in enumerate(zip(thetas, schedules, strict=True)):
        w, b = theta["w"].copy(), theta["b"].copy()
        for batch in schedule:
            gw, gb = np.zeros_like(w), np.zeros_like(b)
            for i in batch:
                d = probabilities({"w": w, "b": b}, x[i])
                d[y[i]] -= 1
                gw, gb = gw + q[i, m] * np.outer(d, x[i]), gb + q[i, m] * d
            w, b = w - lr * gw / len(batch), b - lr * gb / len(batch)
        trained.append({"w": w, "b": b})
    return trained, q.mean(0), q
