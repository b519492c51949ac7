"""Many images through convolutions piece by piece: the same as all at once, and it is really done."""

from dataclasses import replace

import pytest
import torch

from fedpers.core.data import Data
from fedpers.core.errors import FedpersError
from fedpers.core.params import split
from fedpers.core.rng import Stream
from fedpers.learning import layers, pieces
from fedpers.learning.gradients import grad
from fedpers.learning.local_training import minimise_from
from fedpers.learning.losses import Frozen, pull, soft_proximal
from fedpers.learning.model import Model, build_model
from fedpers.learning.optimizers import LocalConfig, init_optimizer

N = 2 * layers.PIECE + 11


def model_of(name="cnn_mcmahan"):
    return build_model(name, input_shape=(1, 28, 28), num_outputs=4, task="classification")


def images(n=N, padded=7):
    """n images, the last of them padding."""
    torch.manual_seed(3)
    mask = torch.ones(n)
    mask[n - padded :] = 0
    return Data(torch.randn(n, 1, 28, 28), torch.randint(0, 4, (n,)), mask)


def double(params, data):
    return {k: v.double() for k, v in params.items()}, Data(data.x.double(), data.y, data.mask.double())


def autograd(loss, w, data):
    """The gradient in one pass, by nothing but torch."""
    leaves = {k: v.detach().clone().requires_grad_() for k, v in w.items()}
    with torch.enable_grad():
        return dict(zip(w, torch.autograd.grad(loss(leaves, data), list(leaves.values())), strict=True))


def losses(model, w):
    """The model's loss as methods change it, and the parameters that are left."""
    body, head = split(w, lambda name: not model.is_head(name))
    return {
        "plain": (model.loss, w),
        "proximal": (soft_proximal(model.loss, 0.3, 1.0, {k: v + 1 for k, v in w.items()}), w),
        "frozen": (Frozen(model.loss, body), head),
        "both": (soft_proximal(Frozen(model.loss, head), 0.3, 1.0, body), body),
    }


@pytest.mark.parametrize("kind", ["plain", "proximal", "frozen", "both"])
def test_the_gradient_is_that_of_all_at_once(kind):
    model = model_of()
    w, data = double(model.init(0), images())
    loss, own = losses(model, w)[kind]
    assert len(pieces.pieces(loss, data)) == 3
    expected = autograd(loss, own, data)
    with torch.no_grad():  # as clients work
        found = grad(loss)(own, data)
    for name, g in found.items():
        torch.testing.assert_close(g, expected[name], rtol=1e-10, atol=1e-12)
        assert g.is_contiguous()


@pytest.mark.parametrize(
    "cfg",
    [
        LocalConfig(0.1, batch_size=40),
        LocalConfig(0.1, batch_size=40, momentum=0.9, weight_decay=0.01),
        LocalConfig(0.01, batch_size=40, optimizer="adam"),
    ],
    ids=["sgd", "momentum", "adam"],
)
@pytest.mark.parametrize("ubar", [1.0, torch.tensor(0.7, dtype=torch.float64)])
@pytest.mark.parametrize("kind", ["proximal", "both"])
def test_a_proximal_term_in_place_is_the_loss_as_it_is_written(kind, ubar, cfg, monkeypatch):
    """A function of which nothing is known is differentiated as a whole; the term is no part of autograd."""
    model = model_of()
    w, data = double(model.init(0), images(100))
    loss, own = losses(model, w)[kind]
    loss = replace(loss, ubar=ubar)
    near = {k: v - 2 for k, v in loss.cbar.items()}
    loss = replace(loss, cbar=near)
    written = lambda w, batch: loss.loss(w, batch) + loss.lam * pull(w, ubar, near)  # noqa: E731
    with torch.no_grad():
        expected, _ = minimise_from(written, own, init_optimizer(own, cfg), data, Stream(0, 1, 2), cfg)
        monkeypatch.setattr(type(loss), "__call__", None)
        found, _ = minimise_from(loss, own, init_optimizer(own, cfg), data, Stream(0, 1, 2), cfg)
    for name, v in found.items():
        torch.testing.assert_close(v, expected[name], rtol=1e-9, atol=1e-11)
        assert not torch.equal(v, own[name])


def test_a_center_of_other_names_is_left_to_autograd():
    model = model_of()
    w, data = double(model.init(0), images(40))
    cfg = LocalConfig(0.1, batch_size=40)
    loss = soft_proximal(model.loss, 0.3, 1.0, {"other": torch.zeros(1)})
    with torch.no_grad(), pytest.raises(FedpersError, match="other"):
        minimise_from(loss, w, init_optimizer(w, cfg), data, Stream(0, 1, 2), cfg)


def test_shares_count_samples_and_no_padding():
    data = images(padded=11)
    found = pieces.pieces(model_of().loss, data)
    assert [share for share, _ in found] == [0.5, 0.5]  # the last piece is nothing but padding
    assert [len(part) for _, part in found] == [layers.PIECE] * 2
    empty = pieces.pieces(model_of().loss, images(padded=N))
    assert len(empty) == 1 and len(empty[0][1]) == N  # whose loss is nan, as it says


class Own(Model):
    """A loss that is no mean over samples."""

    def loss(self, params, data):
        return super().loss(params, data) ** 2


def test_other_losses_stay_whole():
    model, data = model_of(), images()
    own = Own(**{f: getattr(model, f) for f in model.__dataclass_fields__})
    dense = build_model("mlp", input_shape=(1, 28, 28), num_outputs=4, task="classification")
    for loss in (own.loss, dense.loss, lambda w, d: model.loss(w, d) ** 2, model.features_loss):
        assert pieces.pieces(loss, data) == [(1.0, data)]
    assert len(pieces.pieces(model.loss, images(layers.PIECE))) == 1


def test_steps_on_all_samples_are_those_of_autograd():
    model, data = model_of(), images()
    w, data = double(model.init(0), data)
    cfg = LocalConfig(lr=0.05, steps=3, batch_size=0, momentum=0.5, weight_decay=0.01)
    with torch.no_grad():
        moved, _ = minimise_from(model.loss, w, init_optimizer(w, cfg), data, Stream(0, 1, 0), cfg)
    m = {k: torch.zeros_like(v) for k, v in w.items()}
    for _ in range(3):
        g = autograd(model.loss, w, data)
        m = {k: 0.5 * m[k] + g[k] + 0.01 * w[k] for k in w}
        w = {k: w[k] - 0.05 * m[k] for k in w}
    for name, value in w.items():
        torch.testing.assert_close(moved[name], value, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["cnn_mcmahan", "lenet"])
def test_outputs_are_those_of_all_at_once(name, monkeypatch):
    model = model_of(name)
    w, data = double(model.init(0), images())
    with torch.no_grad():
        found = model(w, data.x)
        seen = []
        through = layers.Stack._through
        monkeypatch.setattr(layers.Stack, "_through", lambda s, p, x: seen.append(len(x)) or through(s, p, x))
        model(w, data.x)
        assert seen == [layers.PIECE, layers.PIECE, 11]
    with torch.enable_grad():
        torch.testing.assert_close(found, model(w, data.x), rtol=1e-10, atol=1e-12)
    assert seen[3:] == [N]


def test_a_gradient_goes_through_pieces(monkeypatch):
    model, sizes = model_of(), []
    real = Model.head_loss
    monkeypatch.setattr(Model, "head_loss", lambda m, w, f, d: sizes.append(len(f)) or real(m, w, f, d))
    w, data = model.init(0), images()
    few = Data(data.x[:20], data.y[:20], data.mask[:20])
    cfg = LocalConfig(lr=0.05, steps=1, batch_size=0)
    with torch.no_grad():
        grad(model.loss)(w, data)
        for samples in (data, few):
            minimise_from(model.loss, w, init_optimizer(w, cfg), samples, Stream(0, 1, 0), cfg)
    assert sizes == 2 * [layers.PIECE, layers.PIECE, 11] + [20]
