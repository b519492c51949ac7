"""The kernel for convolutions below maxima in networks that torch differentiates."""

import pytest
import torch
import torch.nn.functional as F

from fedpers.core.data import Data
from fedpers.core.rng import Stream
from fedpers.learning.gradients import grad
from fedpers.learning.kernels import pooled
from fedpers.learning.kernels.dispatch import autograd_only
from fedpers.learning.kernels.library import library
from fedpers.learning.kernels.pooled import convolve_pooled, differentiated_once
from fedpers.learning.layers import PIECE, Conv, Dense, Flatten, MaxPool, Pooled, Relu, stack
from fedpers.learning.local_training import minimise
from fedpers.learning.model import build_model
from fedpers.learning.optimizers import LocalConfig
from fedpers.learning.pieces import layout

pytestmark = pytest.mark.skipif(library() is None, reason="there is no C compiler")
CASES = {  # images [B, C, H, W]; outputs, kernel, padding; maxima
    "first, windows copied": ((20, 1, 28, 28), (32, 5, 0), (2, 2, 0)),
    "of the FedAvg paper": ((3, 32, 12, 12), (64, 5, 2), (2, 2, 0)),
    "of PFLEGO, windows overlap": ((2, 3, 9, 11), (7, 5, 2), (3, 2, 1)),
    "of FedeRiCo, two halves": ((2, 128, 6, 6), (20, 3, 1), (2, 2, 0)),
    "more than two halves": ((1, 120, 5, 4), (3, 3, 1), (2, 2, 0)),
    "rows are left over": ((5, 2, 7, 5), (3, 4, 2), (3, 3, 1)),
    "gaps between windows": ((2, 5, 9, 9), (4, 3, 0), (2, 3, 0)),
    "one weight a channel": ((2, 5, 6, 6), (9, 1, 0), (2, 2, 0)),
}


def draw(case, most=2):
    """x, weight, bias: whole numbers up to `most`, so that sums are exact in any order and ties are ties."""
    images, (outs, k, padding), maxima = CASES[case]
    generator = torch.Generator().manual_seed(1)
    shapes = (images, (outs, images[1], k, k), (outs,))
    values = [torch.randint(-most, most + 1, s, generator=generator).float() for s in shapes]
    return [v.requires_grad_() for v in values], padding, maxima


def by_kernel(tensors, padding, maxima, relu):
    with differentiated_once():
        found = convolve_pooled(*tensors, padding, maxima, relu)
    assert found is not None and found.grad_fn.next_functions
    return found


def by_torch(tensors, padding, maxima, relu):
    x, weight, bias = tensors
    z = F.max_pool2d(F.conv2d(x, weight, bias, padding=padding), *maxima)
    return F.relu(z) if relu else z


def gradients(out, tensors):
    """Of a sum with whole weights."""
    d = torch.randint(-3, 4, out.shape, generator=torch.Generator().manual_seed(2)).to(out)
    return torch.autograd.grad(out, tensors, d)


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("most", [2, 60], ids=["of equal outputs the first counts", "few are equal"])
@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_are_torchs(case, most, relu):
    tensors, *how = draw(case, most)
    found, expected = by_kernel(tensors, *how, relu), by_torch(tensors, *how, relu)
    assert torch.equal(found, expected)
    for mine, theirs in zip(gradients(found, tensors), gradients(expected, tensors), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("case", ["first, windows copied", "of the FedAvg paper"])
def test_images_need_no_derivative(case):
    tensors, *how = draw(case)
    tensors[0].requires_grad_(False)
    pairs = zip(
        gradients(by_kernel(tensors, *how, True), tensors[1:]),
        gradients(by_torch(tensors, *how, True), tensors[1:]),
        strict=True,
    )
    assert all(torch.equal(a, b) for a, b in pairs)


def test_weights_may_lie_anyhow():
    (x, weight, bias), *how = draw("of the FedAvg paper")
    turned = [t.detach().transpose(2, 3).contiguous().transpose(2, 3).requires_grad_() for t in (x, weight)]
    pairs = zip(
        gradients(by_kernel([*turned, bias], *how, True), turned),
        gradients(by_torch([x, weight, bias], *how, True), [x, weight]),
        strict=True,
    )
    assert all(torch.equal(a, b) for a, b in pairs)


def test_what_is_no_number_is_not_hidden():
    tensors, *how = draw("of the FedAvg paper")
    for value in (float("nan"), float("inf")):
        tensors[0].data[1, 3, 5, 5] = value
        found, expected = by_kernel(tensors, *how, True), by_torch(tensors, *how, True)
        assert torch.equal(found.isfinite(), expected.isfinite())
        assert not gradients(found, tensors)[1].isfinite().all()


def test_what_the_kernel_does_not_know_is_left_to_torch():
    (x, weight, bias), padding, maxima = draw("of the FedAvg paper")
    assert convolve_pooled(x, weight, bias, padding, maxima, True) is None  # it may be differentiated again
    with differentiated_once():
        assert convolve_pooled(x, weight, bias, padding, maxima, True) is not None
        assert convolve_pooled(x, weight, bias, padding, (2, 1, 0), True) is None
        assert convolve_pooled(x, weight, bias, padding, (2, 2, 2), True) is None
        assert convolve_pooled(x[:0], weight, bias, padding, maxima, True) is None
        assert convolve_pooled(x[:, :3], weight, bias, padding, maxima, True) is None
        assert convolve_pooled(x[0], weight, bias, padding, maxima, True) is None
        double = [t.double() for t in (x, weight, bias)]
        assert convolve_pooled(*double, padding, maxima, True) is None


def test_it_is_differentiated_once():
    tensors, *how = draw("rows are left over")
    out = by_kernel(tensors, *how, True)
    (g,) = torch.autograd.grad((out * out).sum(), tensors[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        g.sum().backward()


def test_a_failing_allocation_is_an_error(monkeypatch):
    class Full:
        fedpers_pool = library().fedpers_pool

        def fedpers_unpool(self, *_):
            return 1

    monkeypatch.setattr(pooled, "library", Full)
    tensors, *how = draw("rows are left over")
    with pytest.raises(MemoryError, match="minibatch"):
        gradients(by_kernel(tensors, *how, True), tensors)


def test_a_stack_knows_its_maxima():
    half = MaxPool(2, 2)
    layers = (Conv(4, 3, 1), Relu(), half, Conv(4, 3, 1), half, Relu(), Conv(2, 3, 1), Relu())
    network = stack((1, 16, 16), *layers, Conv(2, 3, 1), half, half, Flatten(), Dense(4), Relu())
    order = [
        ("conv1", Pooled(Conv(4, 3, 1), half, True)),
        ("conv2", Pooled(Conv(4, 3, 1), half, True)),
        ("conv3", Conv(2, 3, 1)),
        ("conv4", Pooled(Conv(2, 3, 1), half, False)),
    ]
    assert [each for each in network._order if isinstance(each[1], Conv | Pooled)] == order
    kinds = [type(layer) for _, layer in network._order]
    assert kinds == [Pooled, Pooled, Conv, Relu, Pooled, MaxPool, Flatten, Dense, Relu]


MODELS = {
    "cnn_mcmahan": ((1, 28, 28), 2),
    "cnn_fedsoft_letters": ((1, 28, 28), 2),
    "cnn2_federico": ((3, 16, 16), 3),
    "cnn_pflego": ((3, 16, 16), 2),
    "cnn_omniglot": ((1, 28, 28), 4),
}


@pytest.fixture
def calls(monkeypatch):
    """What the kernel was called for, forward and back."""
    found, longs = [], pooled.longs
    monkeypatch.setattr(pooled, "longs", lambda values: (found.append(values), longs(values))[1])
    return found


def test_a_gradient_alone_is_the_kernels(calls):
    """Also of images that are few enough for one piece."""
    shape = MODELS["cnn_mcmahan"][0]
    model = build_model("cnn_mcmahan", input_shape=shape, num_outputs=10, task="classification")
    x = torch.randn(7, *shape, generator=torch.Generator().manual_seed(0))
    data = Data(x, torch.arange(7), torch.ones(7))
    params = {k: layout(v) for k, v in model.init(0).items()}  # so that torch's outputs have the same bits
    with torch.no_grad():
        found = grad(model.loss)(params, data)
        assert len(calls) == 4
        with autograd_only():
            expected = grad(model.loss)(params, data)
    assert len(calls) == 4
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_training_is_as_by_torch_alone(name, calls):
    shape, pools = MODELS[name]
    model = build_model(name, input_shape=shape, num_outputs=10, task="classification")
    generator = torch.Generator().manual_seed(6)
    data = Data(torch.randn(25, *shape, generator=generator), torch.arange(25) % 10, torch.ones(25))
    cfg = LocalConfig(lr=1e-2, epochs=2, batch_size=10, momentum=0.5)
    with torch.no_grad():
        found = minimise(model.loss, model.init(0), data, Stream(0, 1, 0), cfg)
        made = len(calls)
        with autograd_only():
            expected = minimise(model.loss, model.init(0), data, Stream(0, 1, 0), cfg)
    assert len(calls) == made == 6 * 2 * pools  # six steps, both ways
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-4, atol=5e-5)


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
