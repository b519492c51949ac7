"""FedProto, FedTGP, FedMD and LG-FedAvg on unlike dense networks, in plain torch: full-batch steps."""

import torch
import torch.nn.functional as F

from tests.oracles import fedtgp


def features(layers, x):
    """Hidden layers [(weight, bias), ...], any number of them, with ReLU."""
    for weight, bias in layers:
        x = torch.relu(x @ weight.T + bias)
    return x


def train(layers, head, x, y, prototypes, rate, steps, lam):
    """(hidden layers, head) after steps on cross entropy + λ times the mean squared way to prototypes."""
    count = len(layers)
    for _ in range(steps):
        flat = [t.detach().clone().requires_grad_() for pair in [*layers, head] for t in pair]
        pairs = list(zip(flat[::2], flat[1::2], strict=True))
        z = features(pairs[:count], x)
        loss = F.cross_entropy(z @ pairs[-1][0].T + pairs[-1][1], y)
        for row, label in zip(z, y.tolist(), strict=True):
            if label in prototypes:
                loss = loss + lam * (row - prototypes[label]).square().mean() / len(y)
        slopes = torch.autograd.grad(loss, flat)
        flat = [t.detach() - rate * g for t, g in zip(flat, slopes, strict=True)]
        pairs = list(zip(flat[::2], flat[1::2], strict=True))
        layers, head = pairs[:count], pairs[-1]
    return layers, head


def fedproto_round(models, prototypes, data, chosen, rate, steps, lam):
    """One round; `models` are (hidden layers, head) of each client. Returns (models, prototypes)."""
    models, sums, counts = list(models), {}, {}
    for i in chosen:
        x, y = data[i]
        models[i] = train(*models[i], x, y, prototypes, rate, steps, lam)
        for row, label in zip(features(models[i][0], x), y.tolist(), strict=True):
            sums[label] = sums.get(label, 0) + row
            counts[label] = counts.get(label, 0) + 1
    return models, prototypes | {c: sums[c] / counts[c] for c in sums}


def fedtgp_round(models, p, prototypes, data, chosen, rate, steps, lam, served, rng):
    """One round; `p` makes the prototypes, `served` is how it is trained. Returns (models, p, prototypes)."""
    models, sent = list(models), []
    for i in chosen:
        x, y = data[i]
        models[i] = train(*models[i], x, y, prototypes, rate, steps, lam)
        z = features(models[i][0], x)
        sent += [(c, z[y == c].mean(0)) for c in y.unique().tolist()]
    p, _ = fedtgp.server(p, sent, *served, rng)
    return models, p, {c: fedtgp.prototype(p, c) for c in range(len(p[0]))}


def fedmd_round(models, begun, public, d, data, chosen, rate, steps, first):
    """One round of one rate; `d` are places in public (x, y). Returns (models, consensus on d)."""
    models, (X, Y) = list(models), public
    for i in set(chosen) - begun:
        for x, y in ((X, Y), data[i]):
            models[i] = train(*models[i], x, y, {}, rate, first, 0.0)
    scores = [features(models[i][0], X[d]) @ models[i][1][0].T + models[i][1][1] for i in chosen]
    f = sum(scores) / len(chosen)
    for i in chosen:
        near = digest(*models[i], X[d], f, rate, steps)
        models[i] = train(*near, *data[i], {}, rate, steps, 0.0)
    return models, f


def digest(layers, head, x, wanted, rate, steps):
    """(hidden layers, head) after steps on the mean of |f(x) - wanted|; below 0.001 of its square."""
    count = len(layers)
    for _ in range(steps):
        flat = [t.detach().clone().requires_grad_() for pair in [*layers, head] for t in pair]
        pairs = list(zip(flat[::2], flat[1::2], strict=True))
        away = (features(pairs[:count], x) @ pairs[-1][0].T + pairs[-1][1] - wanted).abs()
        loss = torch.where(away < 1e-3, away**2 / 2e-3, away - 5e-4).mean()
        flat = [t.detach() - rate * g for t, g in zip(flat, torch.autograd.grad(loss, flat), strict=True)]
        pairs = list(zip(flat[::2], flat[1::2], strict=True))
        layers, head = pairs[:count], pairs[-1]
    return layers, head


def lgfedavg_round(bodies, head, data, chosen, rate, steps):
    """One round; returns (hidden layers of each client, head)."""
    bodies, heads, total = list(bodies), [], 0
    for i in chosen:
        x, y = data[i]
        bodies[i], own = train(bodies[i], head, x, y, {}, rate, steps, 0.0)
        heads.append([len(y) * part for part in own])
        total += len(y)
    return bodies, tuple(sum(parts) / total for parts in zip(*heads, strict=True))
