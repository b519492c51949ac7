"""FedeRiCo's Algorithm 1 restated in NumPy for softmax regression, with its extensions.

Gradients to owners with SGD or Adam, or one full-batch step as local training; warm-up rounds; clients
that take no part. It does not draw neighbours: it is told them, and says whether they follow its weights.
"""

import numpy as np


def loss_and_gradient(phi, x, y):
    """Summed cross entropy, and its gradient in W [classes, dim] and b [classes]."""
    z = x @ phi["w"].T + phi["b"]
    z = z - z.max(1, keepdims=True)
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    loss = -np.log(p[np.arange(len(y)), y]).sum()
    p[np.arange(len(y)), y] -= 1
    return loss, {"w": p.T @ x, "b": p.sum(0)}


def softmax(v):
    e = np.exp(v - v.max())
    return e / e.sum()


def descend(phi, g, eta):
    return {k: phi[k] - eta * g[k] for k in phi}


class Adam:
    """Kingma & Ba, Algorithm 1; one object an owner."""

    def __init__(self, eta):
        self.eta, self.t, self.m, self.v = eta, 0, {}, {}

    def __call__(self, phi, g):
        self.t += 1
        new = {}
        for k, x in g.items():
            self.m[k] = 0.9 * self.m.get(k, 0) + 0.1 * x
            self.v[k] = 0.999 * self.v.get(k, 0) + 0.001 * x * x
            m, v = self.m[k] / (1 - 0.9**self.t), self.v[k] / (1 - 0.999**self.t)
            new[k] = phi[k] - self.eta * m / (np.sqrt(v) + 1e-8)
        return new


def owner(phi, parts, step, models, normalise):
    """An owner's model after [(w, gradient or trained model)]."""
    mass = sum(w for w, _ in parts)
    total = {k: sum(w * part[k] for w, part in parts) for k in phi}
    if not models:
        return step(phi, total)
    if not normalise:
        return {k: (1 - mass) * phi[k] + v for k, v in total.items()}
    return {k: v / mass for k, v in total.items()} if mass >= 1e-3 else phi


def federico(
    phis, data, neighbours, beta, eta, mask=True, adam=False, kappa=None, lr=None, normalise=False, warmup=0
):
    """All rounds. Returns (models, W [K, K], last losses, averages).

    Args:
        neighbours: {i: B_i} a round for those that take part; None instead of B_i: i trains alone.
        kappa: losses are kappa times the mean; None: the sum.
        lr: rate of the one local step of update=steps; None: gradients are sent.
    """
    K = len(phis)
    last, average, seen = np.zeros((K, K)), np.zeros((K, K)), np.zeros((K, K), bool)
    W, ranks = np.full((K, K), 1 / K), {}
    step = [Adam(eta) if adam else lambda phi, g: descend(phi, g, eta) for _ in phis]
    alone = dict.fromkeys(range(K), 0)
    for asked in neighbours:
        came = {}
        for i, B in asked.items():
            x, y = data[i]
            follows(B, ranks.get(i), i, {j for j in alone if alone[j] >= warmup})
            found = {b: loss_and_gradient(phis[b], x, y) for b in (i, *(B or ()))}
            if B is None:
                W[i] = np.eye(K)[i]
            else:
                for b, (loss, _) in found.items():
                    last[i, b] = loss if kappa is None else kappa * loss / len(y)
                average[i] = (1 - beta) * average[i] + beta * last[i]
                for b in found:
                    if mask and not seen[i, b]:
                        average[i, b] = last[i, b]
                    seen[i, b] = True
                W[i] = softmax(np.where(seen[i] | (not mask), -average[i], -np.inf))
                ranks[i] = np.where(mask & ~seen[i], 2 + W[i], W[i])
            for b, (_, g) in found.items():
                g = {k: v / (1 if kappa is None else len(y)) for k, v in g.items()}
                came.setdefault(b, []).append((W[i, b], g if lr is None else descend(phis[b], g, lr)))
        new = list(phis)
        for b, parts in came.items():
            new[b] = owner(phis[b], parts, step[b], lr is not None, normalise)
        phis = new
        alone = {j: n + (j in asked and asked[j] is None) for j, n in alone.items()}
    return phis, W, last, average


def follows(B, rank, i, published):
    """No model that was there and was left out ranks above one that was asked for."""
    if B is not None and rank is not None:
        left = [rank[j] for j in published - {i, *B}]
        assert not B or not left or min(rank[list(B)]) >= max(left) - 1e-12, (i, B, rank)
