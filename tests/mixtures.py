"""Linear-regression federations made from given arrays, for the tests of clustered methods."""

from dataclasses import replace

import numpy as np
import torch

from fedpers.core.data import ClientData, Data, Federation
from fedpers.learning.model import build_model


def part(x, y):
    """Arrays as one split, float64."""
    x = torch.as_tensor(np.asarray(x, dtype=np.float64))
    y = torch.as_tensor(np.asarray(y, dtype=np.float64))
    return Data(x, y, torch.ones(len(x), dtype=torch.float64))


def federation(arrays, **options):
    """A client for each (x, y); every split of a client is the same data."""
    parts = [ClientData(*[part(x, y)] * 3) for x, y in arrays]
    sizes = np.array([len(y) for _, y in arrays])
    return Federation(
        "given",
        len(parts),
        arrays[0][0].shape[1:],
        1,
        "regression",
        parts.__getitem__,
        sizes,
        sizes,
        np.zeros((len(parts), 0)),
        **options,
    )


def linear(dim, bias=False):
    """Linear regression, as in FedSoft's synthetic experiments without intercept."""
    return build_model("linear", input_shape=(dim,), num_outputs=1, task="regression", bias=bias)


def blends(U, theta, n, rng, noise=0.0):
    """[(x, y)] a client: shares U [N, S] of samples that follow theta [S, d]."""
    out = []
    for u, size in zip(U, n, strict=True):
        counts = np.floor(u * size + 1e-9).astype(int)
        counts[-1] = size - counts[:-1].sum()
        source = np.repeat(np.arange(len(theta)), counts)
        x = rng.normal(size=(size, theta.shape[1]))
        out.append((x, (x * theta[source]).sum(1) + noise * rng.normal(size=size)))
    return out


def isotropic(targets, n, rng):
    """[(x, y)] a client with XᵀX/n = I and y = Xθ_k: its risk is ‖w - θ_k‖², Hessian 2I."""
    out = []
    for target, size in zip(targets, n, strict=True):
        q, _ = np.linalg.qr(rng.normal(size=(size, len(target))))
        x = np.sqrt(size) * q
        out.append((x, x @ target))
    return out


def keep_importance(server, u):
    """FedSoft with given importance weights [N, S], which its clients are never asked for."""

    def not_asked(s):
        return s
        yield  # a generator, as the method's own step is

    server.state = replace(server.state, u=torch.as_tensor(np.asarray(u)).double())
    server._estimate = not_asked
