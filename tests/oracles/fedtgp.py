"""FedTGP's server restated in plain torch, prototype by prototype; its clients are FedProto's."""

import torch


def prototype(p, c):
    """Of class c, of (vectors, B, b, A, a)."""
    vectors, B, b, A, a = p
    return A @ torch.relu(B @ vectors[c] + b) + a


def server(p, sent, tau, rate, epochs, size, rng):
    """(parameters, margin) after training on [(class, vector), ...]."""
    labels = sorted({c for c, _ in sent})
    means = {k: torch.stack([v for c, v in sent if c == k]).mean(0) for k in labels}
    nearest = [min((means[k] - means[j]).norm() for j in labels if j != k) for k in labels]
    delta = min(tau, float(max(nearest)))
    for _ in range(epochs):
        order = rng.permutation(len(sent))
        for first in range(0, len(order), size):
            rows = order[first : first + size]
            p = [v.detach().clone().requires_grad_() for v in p]
            loss = 0
            for i in rows:
                c, v = sent[i]
                scores = [-(v - prototype(p, k)).norm() - (delta if k == c else 0) for k in range(len(p[0]))]
                loss = loss - torch.log_softmax(torch.stack(scores), 0)[c] / len(rows)
            p = [v.detach() - rate * g for v, g in zip(p, torch.autograd.grad(loss, p), strict=True)]
    return p, delta
