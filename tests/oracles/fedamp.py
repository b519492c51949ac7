"""FedAMP restated for linear regression without intercept, mean squared error, full-batch steps."""

import numpy as np


def fedamp_round(w, sent, data, chosen, rate, steps, alpha, lam, sigma):
    """One round; `w` has a vector a client, `sent` says who has sent one. Returns (w, sent)."""
    new = [np.array(v) for v in w]
    for i in chosen:
        near = {j: alpha * np.exp(-np.sum((w[i] - w[j]) ** 2) / sigma) / sigma for j in sent if j != i}
        if sum(near.values()) > 1:
            near = {j: a / sum(near.values()) for j, a in near.items()}
        u = (1 - sum(near.values())) * w[i] + sum(a * w[j] for j, a in near.items())
        x, y = data[i]
        for _ in range(steps):
            new[i] -= rate * (2 / len(y) * x.T @ (x @ new[i] - y) + lam / alpha * (new[i] - u))
    return new, sent | set(chosen)
