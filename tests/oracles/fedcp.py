"""FedCP restated in plain torch: one hidden ReLU layer, batches as given, noise as Gumbel pairs."""

import torch
import torch.nn.functional as F
from torch import nn

WIDTHS = (10, 15, 20, 50)


def outputs(p, own, shared, x, v, noise):
    """Both heads' sum: a softmax of two numbers a feature, in the dict's names of the restatement."""
    z = torch.relu(F.linear(x, p["w"], p["b"]))
    made = nn.LayerNorm(2 * len(v)).double()
    a = F.linear(z * (v / v.norm()), p["W"], p["B"])
    a = torch.relu(F.layer_norm(a, made.normalized_shape, p["S"], p["T"], made.eps)).view(len(x), 2, -1)
    shares = torch.softmax(a + noise, 1)
    personal, general = shares[:, 0] * z, shares[:, 1] * z
    return z, F.linear(personal, own["H"], own["c"]) + F.linear(general, shared["H"], shared["c"])


def mmd(a, b):
    """The mean of kernels of all pairs, pair by pair."""

    def mean(u, v):
        found = [torch.exp(-(r - s).square().sum() / (2 * width)) for r in u for s in v for width in WIDTHS]
        return sum(found) / len(u) / len(v)

    return mean(a, a) + mean(b, b) - 2 * mean(a, b)


def train(part, own, steps, rate, lam):
    """(what is sent, personal head) after the steps, each (x, y, uniform numbers [n, M])."""
    shared = {k: part[k] for k in "Hc"}
    body = {k: part[k] for k in part if k not in "Hc"}
    v, given = own["H"].sum(0), {k: part[k] for k in "wb"}
    for x, y, u in steps:
        # two Gumbel numbers that differ by the logit of u: the second is 0
        noise = torch.stack([torch.log(u) - torch.log(1 - u), torch.zeros_like(u)], 1)
        flat = {k: t.detach().clone().requires_grad_() for k, t in (body | own).items()}
        z, out = outputs(flat, flat, shared, x, v, noise)
        loss = F.cross_entropy(out, y) + lam * mmd(z, torch.relu(F.linear(x, given["w"], given["b"])))
        slopes = torch.autograd.grad(loss, list(flat.values()))
        moved = {k: (t - rate * g).detach() for (k, t), g in zip(flat.items(), slopes, strict=True)}
        body, own = {k: moved[k] for k in body}, {k: moved[k] for k in own}
    return body | {k: (shared[k] + own[k]) / 2 for k in "Hc"}, own
