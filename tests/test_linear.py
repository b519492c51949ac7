"""The kernel for linear layers of networks that torch differentiates."""

import pytest
import torch
import torch.nn.functional as F

from fedpers.core.data import Data
from fedpers.core.rng import Stream
from fedpers.learning.gradients import grad
from fedpers.learning.kernels import linear as kernel
from fedpers.learning.kernels.dispatch import autograd_only
from fedpers.learning.kernels.library import library
from fedpers.learning.kernels.linear import differentiated_once, linear
from fedpers.learning.layers import PIECE, Conv, Dense, Flatten, MaxPool, Relu, stack
from fedpers.learning.local_training import minimise
from fedpers.learning.model import build_model
from fedpers.learning.optimizers import LocalConfig

needs_compiler = pytest.mark.skipif(library() is None, reason="there is no C compiler")


def draw(*shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


@needs_compiler
@pytest.mark.parametrize("n", [1, 3, 20, 61])
@pytest.mark.parametrize(("ins", "outs"), [(1024, 67), (3136, 22)])
def test_outputs_and_gradients_are_torchs(n, ins, outs):
    x, w, b = draw((n, ins), (outs, ins), (outs,))
    d = torch.randn(n, outs, generator=torch.Generator().manual_seed(1))
    with differentiated_once():
        found = linear(x, w, b)
    assert found.grad_fn.name() == "_LinearBackward" and found.shape == (n, outs)
    exact = [t.detach().double().requires_grad_() for t in (x, w, b)]
    expected = F.linear(*exact)
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-4)
    pairs = zip(
        torch.autograd.grad(found, (x, w, b), d),
        torch.autograd.grad(expected, exact, d.double()),
        strict=True,
    )
    for mine, theirs in pairs:
        torch.testing.assert_close(mine, theirs.float(), rtol=1e-5, atol=1e-4)


@needs_compiler
def test_rows_and_weights_may_lie_anyhow():
    x, w, b = draw((1024, 5), (1024, 80), (80,))
    d = torch.randn(80, 5, generator=torch.Generator().manual_seed(1)).T
    with differentiated_once():
        found = linear(x.T, w.T, b)
    mine = torch.autograd.grad(found, (x, w), d)
    theirs = torch.autograd.grad(F.linear(x.T, w.T, b), (x, w), d)
    for a, c in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, c, rtol=1e-5, atol=1e-4)


@needs_compiler
def test_what_the_kernel_does_not_know_is_torchs():
    def by_kernel(x, w, b):
        with differentiated_once():
            return linear(x, w, b).grad_fn.name() == "_LinearBackward"

    x, w, b = draw((4, 1024), (64, 1024), (64,))
    assert by_kernel(x, w, b)
    assert linear(x, w, b).grad_fn.name() != "_LinearBackward"  # it may be differentiated again
    with differentiated_once(), differentiated_once(False):
        assert linear(x, w, b).grad_fn.name() != "_LinearBackward"
    assert not by_kernel(x, w[:63], b[:63])  # too small
    assert not by_kernel(x[:, :1023], *draw((70, 1023), (70,)))  # no whole registers
    assert not by_kernel(x[:0], w, b)
    assert not by_kernel(*(t.double() for t in (x, w, b)))
    assert not by_kernel(x.view(2, 2, 1024), w, b)
    with pytest.raises(RuntimeError, match="1008"), differentiated_once():
        linear(x[:, :1008], w, b)


@pytest.mark.parametrize("rule", [{}, {"momentum": 0.9, "weight_decay": 0.01}, {"optimizer": "adam"}])
def test_training_is_as_by_torch_alone(rule, monkeypatch):
    """On images of which torch's own training by Adam is within 1e-4 of that in float64.

    Adam divides by the size of a gradient, so where one is next to nothing its rounding is a step: on
    those of seed 0 both are 5e-4 from float64 on an Intel Xeon, and 6e-5 from each other.
    """
    model = build_model("cnn_mcmahan", input_shape=(1, 28, 28), num_outputs=10, task="classification")
    generator = torch.Generator().manual_seed(6)
    x, y = torch.randn(25, 1, 28, 28, generator=generator), torch.arange(25) % 10
    data, cfg = Data(x, y, torch.ones(25)), LocalConfig(lr=1e-3, epochs=2, batch_size=10, **rule)
    calls, call = [], kernel._call
    monkeypatch.setattr(kernel, "_call", lambda name, *rest: (calls.append(name), call(name, *rest)))
    with torch.no_grad():
        found = minimise(model.loss, model.init(0), data, Stream(0, 1, 0), cfg)
        made = len(calls)
        with autograd_only():
            expected = minimise(model.loss, model.init(0), data, Stream(0, 1, 0), cfg)
    assert len(calls) == made == (6 * 3 if library() else 0)  # six steps, three products each
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=5e-5)


@pytest.mark.parametrize("n", [4, PIECE + 3])
def test_gradients_of_gradients_do_not_meet_the_kernels(n):
    """Of a loss after a step they have the second derivatives, as torch has them in float64."""
    model = build_model("cnn_mcmahan", input_shape=(1, 28, 28), num_outputs=10, task="classification")
    x = torch.randn(n, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    data, params = Data(x, torch.arange(n) % 10, torch.ones(n)), model.init(0)

    def after_a_step(w, batch):
        g = grad(model.loss)(w, batch)
        return model.loss({k: v - 0.5 * g[k] for k, v in w.items()}, batch)

    cfg = LocalConfig(lr=1.0, steps=1, batch_size=0)
    with torch.no_grad():
        found = grad(after_a_step)(params, data)
        moved = minimise(after_a_step, params, data, Stream(0, 1, 0), cfg)
    wide = Data(x.double(), data.y, data.mask.double())
    leaves = {k: v.double().requires_grad_() for k, v in params.items()}
    g = torch.autograd.grad(model.loss(leaves, wide), list(leaves.values()), create_graph=True)
    stepped = {k: v - 0.5 * d for (k, v), d in zip(leaves.items(), g, strict=True)}
    exact = torch.autograd.grad(model.loss(stepped, wide), list(leaves.values()))
    for (name, value), first in zip(found.items(), exact, strict=True):
        torch.testing.assert_close(value, first.float(), rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(params[name] - moved[name], first.float(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("size", "stride", "padding"), [(2, 2, 0), (3, 2, 1)])
def test_a_maximum_goes_ahead_of_its_relu(size, stride, padding):
    pool = MaxPool(size, stride, padding)
    shape = (2, 9, 9)
    usual = stack(shape, Conv(4, 3, 1), Relu(), pool, Flatten(), Dense(5), Relu())
    params = usual.init()
    x = torch.randn(6, *shape, generator=torch.Generator().manual_seed(3)).requires_grad_()

    def by_hand(w, x):
        x = F.max_pool2d(
            F.relu(F.conv2d(x, w["conv1.weight"], w["conv1.bias"], padding=1)), size, stride, padding
        )
        return F.relu(F.linear(x.flatten(1), w["dense1.weight"], w["dense1.bias"]))

    params["conv1.bias"] = torch.tensor([-9.0, 0.0, 0.1, 9.0])  # windows of zeros only, and of none
    leaves = [v.requires_grad_() for v in params.values()]
    found, expected = usual(params, x), by_hand(params, x)
    assert torch.equal(found, expected)
    d = torch.randn(found.shape, generator=torch.Generator().manual_seed(4))
    pairs = zip(
        torch.autograd.grad(found, [x, *leaves], d),
        torch.autograd.grad(expected, [x, *leaves], d),
        strict=True,
    )
    assert all(torch.equal(a, b) for a, b in pairs)
