"""pFedGraph restated for linear regression without intercept; its programs by trying all supports."""

from itertools import combinations

import numpy as np


def cosine(a, b):
    """Of two vectors; 0 where one is 0."""
    lengths = np.sqrt(a @ a) * np.sqrt(b @ b)
    return a @ b / lengths if lengths else 0.0


def program(d, q, alpha):
    """argmin of a·d + α ‖a - q‖² over the simplex: the best of the minima with these entries above 0.

    On a support S the Lagrangian gives a_j = q_j - (d_j + μ) / (2α) with Σ_S a_j = 1.
    """
    found = []
    for size in range(1, len(d) + 1):
        for support in map(list, combinations(range(len(d)), size)):
            mu = (2 * alpha * (sum(q[support]) - 1) - sum(d[support])) / size
            a = np.zeros(len(d))
            a[support] = q[support] - (d[support] + mu) / (2 * alpha)
            if (a >= 0).all():
                found.append((a @ d + alpha * sum((a - q) ** 2), a))
    return min(found, key=lambda pair: pair[0])[1]


def train(w, near, x, y, rate, steps, lam):
    """Full-batch steps on the mean squared error less λ Σ_j a_j cos(w, w_j), (a_j, w_j) of `near`."""
    for _ in range(steps):
        slope, length = 2 / len(y) * x.T @ (x @ w - y), np.sqrt(w @ w)
        for a, other in near:
            along = other / np.sqrt(other @ other)
            slope = slope - lam * a * (along - (along @ w) * w / length**2) / length
        w = w - rate * slope
    return w


def pfedgraph_round(w, orders, first, data, chosen, rate, steps, lam, alpha, alike):
    """One round; `orders` has (start, [(weight, model)]) of clients. Returns (w, orders, weights)."""
    w, orders = list(w), dict(orders)
    for i in chosen:
        w[i] = train(*orders.get(i, (first, [])), *data[i], rate, steps, lam)
    q = np.array([len(data[j][1]) for j in chosen])
    weights = {}
    for i in chosen:
        cosines = [cosine(w[i] - first, w[j] - first) for j in chosen]
        d = np.array([-1.0 if c > alike else -c for c in cosines])
        weights[i] = program(d, q / sum(q), alpha)
        near = [(a, w[j]) for a, j in zip(weights[i], chosen, strict=True)]
        orders[i] = sum(a * other for a, other in near), near
    return w, orders, weights
