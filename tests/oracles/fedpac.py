"""FedPAC restated in NumPy: one hidden ReLU layer, full-batch steps; weights of heads by all supports."""

from itertools import combinations

import numpy as np

from tests.oracles.blocks import average
from tests.oracles.fedproto import train
from tests.oracles.pflego import features, gradients


def weights(i, H, V):
    """The minimum over each face of the simplex by Lagrange, the best of those inside it."""
    r, best = len(V), None
    away = [H[i] - other for other in H]
    P = np.array([[np.sum(a * b) for b in away] for a in away]) + np.diag(V)
    for size in range(1, r + 1):
        for face in map(list, combinations(range(r), size)):
            solved = np.linalg.lstsq(P[np.ix_(face, face)], np.ones(size), rcond=None)[0]
            alpha = np.zeros(r)
            alpha[face] = solved / solved.sum()
            if (alpha >= 0).all() and (best is None or alpha @ P @ alpha < best @ P @ best):
                best = alpha
    return best


def client(theta, head, prototypes, x, y, K, rates, steps, lam):
    """(theta, head, {class: (mean, count)}, H, V)"""
    z, n = features(theta, x), len(y)
    H = np.stack([z[y == c].sum(0) / n for c in range(K)])
    V = np.mean([row @ row for row in z]) - sum(row @ row for row in H)
    for _ in range(steps[0]):
        g_head, _ = gradients(theta, head, x, y)
        head = {k: head[k] - rates[0] * g_head[k] for k in head}
    for _ in range(steps[1]):
        theta, _ = train(theta, head, x, y, prototypes, rates[1], 1, lam)
    z = features(theta, x)
    means = {c: (z[y == c].mean(0), (y == c).sum()) for c in set(y.tolist())}
    return theta, head, means, H, V / n


def fedpac_round(theta, heads, prototypes, data, chosen, K, rates, steps, lam):
    """One round: (theta, heads, prototypes) after it."""
    told = [client(theta, heads[i], prototypes, *data[i], K, rates, steps, lam) for i in chosen]
    thetas, own, means, H, V = zip(*told, strict=True)
    heads = list(heads)
    for place, i in enumerate(chosen):
        alpha = weights(place, H, V)
        heads[i] = {k: sum(a * h[k] for a, h in zip(alpha, own, strict=True)) for k in own[0]}
    new = {}
    for c in range(K):
        seen = [m[c] for m in means if c in m]
        if seen:
            new[c] = sum(n * mean for mean, n in seen) / sum(n for _, n in seen)
    return average(list(thetas), [len(data[i][1]) for i in chosen]), heads, prototypes | new
