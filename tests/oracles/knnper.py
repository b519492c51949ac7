"""kNN-Per restated in NumPy: FedAvg of one hidden ReLU layer, neighbours sorted sample by sample."""

import numpy as np

from tests.oracles.blocks import average, descend, sizes
from tests.oracles.pflego import features


def fedavg_round(body, head, data, chosen, rate, steps):
    """One round; returns (body, head)."""
    trained = [descend(body, head, *data[m], rate, rate, steps) for m in chosen]
    n = [sizes(data)[m] for m in chosen]
    return tuple(average([t[i] for t in trained], n) for i in (0, 1))


def votes(z, known, labels, k, sigma, K):
    """p_kNN of one sample with features z, [K]; 0 where nobody is known."""
    p = np.zeros(K)
    distances = np.array([np.sqrt(((z - other) ** 2).sum()) for other in known])
    for i in np.argsort(distances)[:k]:
        p[labels[i]] += np.exp(-distances[i] / sigma)
    return p / p.sum() if len(known) else p


def predict(body, head, own, x, k, sigma, lam):
    """(probabilities [n, K] at inputs x, λ) of a client with samples `own`; λ is found if it is None."""
    (xs, ys), K = own, len(head["b"])
    known = features(body, xs)

    def model(z):
        e = np.exp(z @ head["w"].T + head["b"])
        return e / e.sum()

    if lam is None:
        fit = []
        for tried in range(11):
            told = 0.0
            for i, y in enumerate(ys):
                rest = np.arange(len(ys)) != i
                v = votes(known[i], known[rest], ys[rest], k, sigma, K)
                told += np.log(max((1 - tried / 10) * model(known[i])[y] + tried / 10 * v[y], 1e-30))
            fit.append(told)
        lam = np.argmax(fit) / 10
    zs = features(body, x)
    return np.array([lam * votes(z, known, ys, k, sigma, K) + (1 - lam) * model(z) for z in zs]), lam
