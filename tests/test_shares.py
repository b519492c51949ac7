"""K models under memberships: their mixture, slopes in it, and the models after a training of the mixture."""

import numpy as np
import pytest
import torch

from fedpers.learning.kernels import native
from fedpers.learning.kernels.shares import mixtures_of, shared_out, slopes_of

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C compiler")
CLIENTS = 3
SHAPES = {"a bias": (3,), "more than a block": (7, 83), "one entry": (1,)}
LARGE = {"past the caches": (1366, 64)}  # of three clients and four models more than 2^20 numbers


def drawn(*shape):
    rng = np.random.default_rng(list(shape))
    return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))


def memberships(K):
    return torch.softmax(3 * drawn(CLIENTS, K).double(), 1)


def close(found, want, size=1.0):
    """`size`: of the numbers that were added up."""
    torch.testing.assert_close(found.double(), want, rtol=2e-6, atol=2e-6 * size)


@pytest.mark.parametrize("shared", [True, False])  # all clients have the same models, or each its own
@pytest.mark.parametrize("K", [1, 2, 5])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_mixtures_and_slopes_in_a_stack_and_alone(shape, K, shared):
    c, g, v = memberships(K), drawn(CLIENTS, *shape), drawn(CLIENTS, K, *shape)
    v = v[:1].expand_as(v) if shared else v
    dims = (None if shared else 0, 0)
    given = v[0] if shared else v
    with torch.no_grad():
        mixed = torch.vmap(lambda v, c: mixtures_of([v], c)[0], dims)(given, c)
        slopes = torch.vmap(lambda v, g: slopes_of([v], [g]), dims)(given, g)
        for i in range(CLIENTS):
            close(mixed[i], torch.einsum("k,k...->...", c[i], v[i].double()))
            close(slopes[i], v[i].double().flatten(1) @ g[i].double().flatten(), float(v[i].norm()))
            assert torch.equal(mixed[i], mixtures_of([v[i]], c[i])[0])
            assert torch.equal(slopes[i], slopes_of([v[i]], [g[i]]))


def test_layers_of_one_call_are_as_each_alone():
    K, (c, *_) = 3, memberships(3)
    v, g = ([drawn(*front, *s) for s in SHAPES.values()] for front in ((K,), ()))
    with torch.no_grad():
        for found, layer in zip(mixtures_of(v, c), v, strict=True):
            assert torch.equal(found, mixtures_of([layer], c)[0])
        apart = [slopes_of([a], [b]) for a, b in zip(v, g, strict=True)]
        torch.testing.assert_close(slopes_of(v, g), torch.stack(apart).sum(0))
        A = torch.tensor([[0.9, -0.1], [0.05, 0.8]])
        kinds, ends = [v, [2 * t for t in v]], [g, [t - 1 for t in g]]
        found = shared_out(kinds, c, A, ends)
        for p in range(len(v)):
            alone = shared_out([[k[p]] for k in kinds], c, A, [[e[p]] for e in ends])
            assert all(torch.equal(a[p], b[0]) for a, b in zip(found, alone, strict=True))


def test_whoever_differentiates_gets_torchs_mixture():
    v, c = drawn(2, 4), memberships(2)[0].requires_grad_()
    mixtures_of([v], c)[0].sum().backward()
    close(c.grad, v.double().sum(1))


def steps_of(v, m, gradients, factor, lr=0.1, decay=0.05, momentum=0.9):
    """SGD's v and m in float64 with gradients that are times `factor`; without momentum m is 0."""
    for g in gradients:
        m = momentum * m + decay * v + factor * g
        v = v - lr * m
    return v, m


@pytest.mark.parametrize("momentum", [0.9, 0.0])
@pytest.mark.parametrize("shape", (SHAPES | LARGE).values(), ids=SHAPES | LARGE)
def test_models_after_a_training_of_their_mixture(shape, momentum):
    """Gradients are given, clients take different numbers of steps; all have the same models at first."""
    K, lr, decay = 4, 0.1, 0.05
    c, models = memberships(K), drawn(K, *shape).double()
    moments = drawn(CLIENTS, K, *shape).double() * bool(momentum)
    A = np.array([[1 - lr * decay, -lr * momentum], [decay * bool(momentum), momentum]])
    powers, ends, wanted = [], [], []
    for i in range(CLIENTS):
        gradients = drawn(2 + i, *shape).double()
        mixture = [torch.einsum("k,k...->...", c[i], t) for t in (models, moments[i])]
        ends.append(steps_of(*mixture, gradients, c[i].square().sum(), lr, decay, momentum))
        each = [
            steps_of(v, m, gradients, f, lr, decay, momentum)
            for v, m, f in zip(models, moments[i], c[i], strict=True)
        ]
        wanted.append([torch.stack(t) for t in zip(*each, strict=True)])
        powers.append(torch.from_numpy(np.linalg.matrix_power(A, 2 + i)))
    kinds = 2 if momentum else 1
    after = [torch.stack([e[k] for e in ends]).float() for k in range(kinds)]

    def one(c, power, m, *after):
        return tuple(
            t
            for kind in shared_out([[models.float()], [m]][:kinds], c, power, [[t] for t in after])
            for t in kind
        )

    with torch.no_grad():
        found = torch.vmap(one)(c, torch.stack(powers), moments.float(), *after)
    for k in range(kinds):
        for i in range(CLIENTS):
            close(found[k][i], wanted[i][k])
