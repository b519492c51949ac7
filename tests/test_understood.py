"""What a kernel was not told of goes to torch: no new setting, layer, loss or model is ignored.

Each test plants one, and asks that training obeys it: the steps are those of a loop that knows it.
"""

from dataclasses import dataclass, replace

import pytest
import torch

from fedpers.checks.toy_data import toy_federation
from fedpers.core.errors import ConfigError
from fedpers.core.rng import Stream
from fedpers.families.prototypes import Prototypes, Regularised
from fedpers.learning.kernels.plan import small_convs, understood
from fedpers.learning.layers import Conv, Dense, Flatten, MaxPool, Relu, Stack, stack
from fedpers.learning.local_training import minimise
from fedpers.learning.losses import Frozen, Proximal
from fedpers.learning.minibatches import minibatches
from fedpers.learning.model import Model, build_model
from fedpers.learning.optimizers import OPTIMIZERS, LocalConfig, init_optimizer, program, sgd, sgd_step
from fedpers.learning.step import Clip, Rule

FED = toy_federation(3, (13, 9), dim=6)
MODEL = build_model("mlp", input_shape=(6,), num_outputs=3, task="classification", hidden=[9])
DATA = FED.client(0).train
LOCAL = LocalConfig(lr=0.1, epochs=2, batch_size=5)


def by_autograd(loss, params, data):
    leaves = {k: v.detach().clone().requires_grad_() for k, v in params.items()}
    with torch.enable_grad():
        value = loss(leaves, data)
    return dict(zip(leaves, torch.autograd.grad(value, list(leaves.values())), strict=True))


def loop(loss, params, cfg, step=sgd_step):
    opt = init_optimizer(params, cfg)
    for batch in minibatches(DATA, Stream(0, 1, 0), cfg):
        params, opt = step(params, by_autograd(loss, params, batch), opt, cfg, cfg.lr)
    return params


def trained(loss, params, cfg):
    with torch.no_grad():
        return minimise(loss, params, DATA, Stream(0, 1, 0), cfg)


def agree(a, b, tolerance=1e-6):
    assert a.keys() == b.keys()
    for k in a:
        torch.testing.assert_close(a[k], b[k], rtol=0, atol=tolerance)


def differ(a, b):
    assert any(float((a[k] - b[k]).abs().max()) > 1e-3 for k in a)


# ---- settings ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clipped(LocalConfig):
    clip: float = 0.0  # of each entry of the gradient


def clipped(cfg):
    """Plain SGD, whose writer has heard of the new setting."""
    return Rule((Clip("g", -cfg.clip, cfg.clip), *sgd(cfg).instructions))


def clipping(params, g, opt, cfg, lr):
    return sgd_step(params, {k: v.clamp(-cfg.clip, cfg.clip) for k, v in g.items()}, opt, LOCAL, lr)


def test_a_new_setting_is_obeyed(monkeypatch):
    monkeypatch.setitem(OPTIMIZERS, "sgd", clipped)
    cfg = Clipped(**vars(LOCAL), clip=0.02)
    program.cache_clear()
    found = trained(MODEL.loss, MODEL.init(0), cfg)
    program.cache_clear()
    monkeypatch.undo()
    agree(found, loop(MODEL.loss, MODEL.init(0), cfg, clipping))
    differ(found, trained(MODEL.loss, MODEL.init(0), LOCAL))
    assert understood(Clipped(**vars(LOCAL)))  # at its default a setting asks for nothing


def test_an_unknown_optimiser_is_refused_where_nobody_knows_it():
    cfg = replace(LOCAL, optimizer="lion")
    with pytest.raises(ConfigError, match=r"local\.optimizer.*lion"):
        trained(MODEL.loss, MODEL.init(0), cfg)


# ---- layers --------------------------------------------------------------------------------------


class Leaky(Relu):
    """A subclass of a layer that kernels know."""

    def __call__(self, params, name, x):
        return torch.nn.functional.leaky_relu(x, 0.3)


class Scaled(Dense):
    def __call__(self, params, name, x):
        return 2 * super().__call__(params, name, x)


class Doubled(Stack):
    def __call__(self, params, x):
        return 2 * super().__call__(params, x)


def model_of(network):
    return Model("mine", "classification", network.num_features, 3, network)


NETWORKS = {
    "layer": stack((6,), Flatten(), Dense(9), Leaky()),
    "dense": stack((6,), Flatten(), Scaled(9), Relu()),
    "network": Doubled(*vars(stack((6,), Flatten(), Dense(9), Relu())).values()),
}


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_subclass_of_a_layer_is_itself(kind):
    model = model_of(NETWORKS[kind])
    agree(trained(model.loss, model.init(0), LOCAL), loop(model.loss, model.init(0), LOCAL))


@pytest.mark.parametrize("layer", [Leaky(), MaxPool(2, 2), Relu()])
def test_of_convolutions_too(layer):
    network = stack((1, 12, 12), Conv(2, 3, 0), layer, Flatten(), Dense(4), Relu())
    known = type(layer) is Relu
    assert (small_convs(model_of(network)) is not None) == known
    assert network.piecewise == (type(layer) is not Leaky)


# ---- losses and models ---------------------------------------------------------------------------


class Smoothed(Model):
    """A subclass with a loss of its own."""

    def sample_losses(self, outputs, y):
        return torch.nn.functional.cross_entropy(outputs, y, reduction="none", label_smoothing=0.5)


class Halved(Proximal):
    def __call__(self, w, batch):
        return self.loss(w, batch) / 2


class Noted(Frozen):
    def __call__(self, w, batch):
        return 3 * super().__call__(w, batch)


class Doubling(Regularised):
    """Inherits what a kernel would be told, which is no longer true of it."""

    def __call__(self, w, batch):
        return 2 * MODEL.loss(w, batch)


def smoothed(name, hidden):
    built = build_model(name, input_shape=(6,), num_outputs=3, task="classification", **hidden)
    return Smoothed(**vars(built))


@pytest.mark.parametrize(("name", "hidden"), [("mlp", {"hidden": [9]}), ("logistic", {})])
def test_a_subclass_of_the_model_has_its_own_loss(name, hidden):
    model = smoothed(name, hidden)
    agree(trained(model.loss, model.init(0), LOCAL), loop(model.loss, model.init(0), LOCAL))


def test_a_closure_is_what_it_computes():
    loss = lambda w, batch: 2 * MODEL.loss(w, batch)  # noqa: E731
    agree(trained(loss, MODEL.init(0), LOCAL), loop(loss, MODEL.init(0), LOCAL))


@pytest.mark.parametrize("kind", ["proximal", "frozen", "known"])
def test_a_subclass_of_a_loss_is_itself(kind):
    start = MODEL.init(0)
    head = {k: v for k, v in start.items() if k.startswith("head")}
    loss, params = {
        "proximal": (Halved(MODEL.loss, 0.5, 1.0, start), start),
        "frozen": (Noted(MODEL.loss, start), head),
        "known": (Doubling(MODEL, 1.0, Prototypes(torch.zeros(3, 9), torch.ones(3))), start),
    }[kind]
    agree(trained(loss, params, LOCAL), loop(loss, params, LOCAL))
