"""FedProto, FedTGP and LG-FedAvg on unlike dense networks, restated in plain torch: full-batch steps."""

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


def lgfedavg_round(bodies, head, data, chosen, rate, steps):
    """One round; returns (hidden layers of each client, head)."""
    bodies, heads, total = list(bodies), [], 0
    for i in chosen:
        x, y = data[i]
        bodies[i], own = train(bodies[i], head, x, y, {}, rate, steps, 0.0)
        heads.append([len(y) * part for part in own])
        total += len(y)
    return bodies, tuple(sum(parts) / total for parts in zip(*heads, strict=True))
