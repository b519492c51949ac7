"""Mixtures: the two architectures, their gradients against closed forms, and where they agree."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedpers.checks.toy_data import toy_federation
from fedpers.core.data import Data
from fedpers.core.errors import ConfigError
from fedpers.core.rng import Stream
from fedpers.families.mixtures.mixture import Mixture, log_mix
from fedpers.learning.gradients import grad
from fedpers.learning.kernels.dispatch import autograd_only
from fedpers.learning.local_training import minimise_from
from fedpers.learning.model import build_model
from fedpers.learning.optimizers import LocalConfig, init_optimizer
from tests.oracles.ppfl import gradients

F64 = torch.float64
RNG = np.random.default_rng(0)
X = torch.from_numpy(RNG.normal(size=(20, 5)))
TASKS = {"linear": "regression", "logistic": "binary", "mlp": "classification"}
Y = {
    "linear": torch.from_numpy(RNG.normal(size=(20, 1))),
    "logistic": torch.from_numpy(RNG.integers(0, 2, 20)),
    "mlp": torch.from_numpy(RNG.integers(0, 3, 20)),
}
C = torch.tensor([0.5, 0.2, 0.3], dtype=F64)
ONE_HOT = torch.tensor([0.0, 1.0, 0.0], dtype=F64)


def mixture(name, **options):
    extra = {"hidden": [4]} if name == "mlp" else {"bias": False}
    outputs = 3 if name == "mlp" else 1
    model = build_model(name, input_shape=(5,), num_outputs=outputs, task=TASKS[name], **extra)
    return Mixture(model, **options)


def start(mix, K=3):
    params = {n: v.to(F64) for n, v in mix.model.init(0).items()}
    return mix.start(params, K, np.random.default_rng(1))


def data(name):
    return Data(X, Y[name], torch.ones(20, dtype=F64))


def all_of(mix, name, c=C):
    """(outputs, gradient in theta, gradient in c) at the common start."""
    theta = start(mix)
    g = grad(lambda th, c: mix.loss(th, data(name), c), argnums=(0, 1))(theta, c)
    return mix.outputs(theta, c, X), *g


def same(a, b, atol=1e-14):
    for x, y in zip(torch.utils._pytree.tree_leaves(a), torch.utils._pytree.tree_leaves(b), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=atol)


def differ(a, b):
    return float((a - b).abs().max()) > 1e-3


AFFINE = [("linear", "head"), ("logistic", "head"), ("logistic", "model"), ("mlp", "head")]


@pytest.mark.parametrize(("name", "canonical"), AFFINE)
def test_both_architectures_are_one_function_of_affine_modules(name, canonical):
    first = all_of(mixture(name, arch="output", canonical=canonical), name)
    same(first, all_of(mixture(name, arch="parameter", canonical=canonical), name))


def test_they_differ_for_networks_and_for_mixed_probabilities():
    a, b = (
        all_of(mixture("mlp", arch=arch, canonical="model"), "mlp")[0] for arch in ("output", "parameter")
    )
    assert differ(a, b)
    for name in ("logistic", "mlp"):
        a, b = (all_of(mixture(name, arch="output", glm_mix=link), name)[0] for link in ("logit", "prob"))
        assert differ(a.softmax(1) if name == "mlp" else a, b.exp() if name == "mlp" else b)


def test_mixing_after_every_layer_is_mixing_parameters():
    """Restated layer by layer: Σ_k c_k (W_k h + b_k), then ReLU, then the head the same."""
    mix = mixture("mlp", arch="parameter", canonical="model")
    theta = start(mix)
    layer = lambda h, n: torch.einsum(  # noqa: E731
        "k,kno->no",
        C,
        torch.stack([F.linear(h, theta[f"{n}.weight"][k], theta[f"{n}.bias"][k]) for k in range(3)]),
    )
    want = layer(F.relu(layer(X, "dense1")), "head")
    torch.testing.assert_close(mix.outputs(theta, C, X), want, rtol=0, atol=1e-14)


def test_the_probabilities_that_are_mixed_are_those_of_equation_11():
    mix = mixture("logistic", arch="output", glm_mix="prob")
    theta = start(mix)
    each = torch.sigmoid(torch.stack([X @ w.T for w in theta["head.weight"]], -1))
    torch.testing.assert_close(torch.sigmoid(mix.outputs(theta, C, X)), each @ C, rtol=0, atol=1e-14)
    mix = mixture("mlp", arch="output", canonical="model", glm_mix="prob")
    theta = start(mix)
    each = torch.stack([torch.softmax(mix.model(m, X), 1) for m in mix.unstack(theta)], -1)
    torch.testing.assert_close(mix.outputs(theta, C, X).exp(), each @ C, rtol=0, atol=1e-14)


FORMS = [
    ("linear", "parameter", "logit"),
    ("linear", "output", "logit"),
    ("logistic", "parameter", "logit"),
    ("logistic", "output", "prob"),
]


@pytest.mark.parametrize(("name", "arch", "link"), FORMS)
def test_gradients_are_the_closed_forms(name, arch, link):
    mix = mixture(name, arch=arch, glm_mix=link)
    _, g_theta, g_c = all_of(mix, name)
    columns = start(mix)["head.weight"][:, 0].T.numpy()
    kind = "identity" if name == "linear" else "logistic"
    want_theta, want_c = gradients(
        columns, C.numpy(), X.numpy(), Y[name].numpy().reshape(-1), kind, prob=link == "prob"
    )
    scale = 2 if name == "linear" else 1  # our squared error has no factor 1/2
    np.testing.assert_allclose(g_theta["head.weight"][:, 0].T, scale * want_theta, rtol=0, atol=1e-14)
    want_c, g_c = scale * want_c, g_c.numpy()
    if link == "prob":  # equal along the simplex; a constant is nothing to the mirror step
        want_c, g_c = want_c - want_c.mean(), g_c - g_c.mean()
    np.testing.assert_allclose(g_c, want_c, rtol=0, atol=1e-14)


@pytest.mark.parametrize("canonical", ["head", "model"])
@pytest.mark.parametrize(("arch", "link"), [("parameter", "logit"), ("output", "logit"), ("output", "prob")])
def test_a_one_hot_membership_is_that_model_alone(arch, link, canonical):
    mix = mixture("mlp", arch=arch, glm_mix=link, canonical=canonical)
    theta = start(mix)
    out, g, g_c = all_of(mix, "mlp", ONE_HOT)
    alone = mix.model(mix.unstack(theta)[1], X)
    torch.testing.assert_close(out.log_softmax(1), alone.log_softmax(1), rtol=0, atol=1e-14)
    for n, v in g.items():
        if mix.is_canonical(n):
            assert float(v[[0, 2]].abs().max()) == 0
            assert float(v[1].abs().max()) > 0
    assert torch.isfinite(g_c).all()


def test_mixed_logarithms_do_not_overflow():
    logs = torch.tensor([[-1e4, -2e4, 0.0]], dtype=F64).requires_grad_()
    c = torch.tensor([0.5, 0.5, 0.0], dtype=F64).requires_grad_()
    value = log_mix(logs, c)
    torch.testing.assert_close(value, torch.tensor([-1e4 + np.log(0.5)], dtype=F64))
    value.sum().backward()
    assert torch.isfinite(logs.grad).all()
    assert torch.isfinite(c.grad).all()


@pytest.mark.parametrize("canonical", ["head", "model"])
@pytest.mark.parametrize("name", ["mlp", "logistic"])
def test_the_gradients_by_the_chain_rule_are_autograds(name, canonical):
    """Of mixed parameters: in all models, and in the membership."""
    mix = mixture(name, arch="parameter", canonical=canonical)
    theta, d = start(mix), data(name)
    with torch.no_grad():
        fast, fast_c = grad(mix.loss_at(C))(theta, d), mix.membership_gradient(theta, d, C)
    leaves = {n: v.clone().requires_grad_() for n, v in theta.items()}
    c = C.clone().requires_grad_()
    slow = torch.autograd.grad(mix.loss(leaves, d, c), [*leaves.values(), c])
    same(fast, dict(zip(leaves, slow, strict=False)), atol=1e-14)
    torch.testing.assert_close(fast_c, slow[-1], rtol=0, atol=1e-14)


MEMBERSHIPS = {"blend": (0.5, 0.3, 0.2), "two": (0.9, 0.1, 0.0), "one": (0.0, 1.0, 0.0)}


@pytest.mark.parametrize(
    "local",
    [
        LocalConfig(lr=0.1, epochs=3, batch_size=5),
        LocalConfig(lr=0.1, epochs=4, batch_size=0),
        LocalConfig(lr=0.1, epochs=2, batch_size=5, weight_decay=0.1),
        LocalConfig(lr=0.1, epochs=2, batch_size=5, momentum=0.9),
        LocalConfig(lr=0.05, epochs=3, batch_size=5, momentum=0.9, weight_decay=0.1),
    ],
    ids=["minibatches", "whole", "decay", "momentum", "both"],
)
@pytest.mark.parametrize("c", MEMBERSHIPS.values(), ids=MEMBERSHIPS)
@pytest.mark.parametrize("canonical", ["head", "model"])
@pytest.mark.parametrize("hidden", [(), (7,), (7, 5)], ids=str)
def test_training_the_mixture_is_training_every_model(hidden, canonical, c, local):
    """The short way of SGD: autograd's steps on every θ_k, twice, the second with kept momentum."""
    fed = toy_federation(1, (13,), dim=6)
    name, more = ("mlp", {"hidden": list(hidden)}) if hidden else ("logistic", {})
    model = build_model(name, input_shape=(6,), num_outputs=fed.num_classes, task=fed.task, **more)
    mix = Mixture(model, canonical=canonical)
    theta = mix.start(model.init(0), 3, np.random.default_rng(1))
    f, d = mix.loss_at(torch.tensor(c, dtype=torch.float64)), fed.client(0).train

    def train(rng):
        once = minimise_from(f, theta, init_optimizer(theta, local), d, rng, local)
        return minimise_from(f, *once, d, rng, local)

    with torch.no_grad():
        w, opt = train(Stream(0, 1, 0))
        with autograd_only():
            wanted, wanted_slots = train(Stream(0, 1, 0))
    assert w.keys() == theta.keys()
    for n in theta:
        torch.testing.assert_close(w[n], wanted[n], rtol=1e-5, atol=1e-6)
        if 0.0 in c and mix.is_canonical(n) and not local.weight_decay:
            assert torch.equal(w[n][2], theta[n][2])  # who has no part does not move
    assert opt.step == wanted_slots.step and opt.m.keys() == wanted_slots.m.keys()
    for n in opt.m:
        torch.testing.assert_close(opt.m[n], wanted_slots.m[n], rtol=1e-5, atol=1e-6)


def test_padding_has_no_effect():
    mix = mixture("mlp", arch="output", canonical="model")
    theta, d = start(mix), data("mlp")
    padded = Data(torch.cat([X, X + 9]), torch.cat([d.y, d.y]), torch.cat([d.mask, 0 * d.mask]))
    torch.testing.assert_close(mix.loss(theta, padded, C), mix.loss(theta, d, C), rtol=0, atol=1e-15)
    torch.testing.assert_close(
        mix.membership_gradient(theta, padded, C), mix.membership_gradient(theta, d, C), rtol=0, atol=1e-15
    )


def test_stack_and_unstack_are_inverse_and_share_the_body():
    mix = mixture("mlp")
    models = mix.unstack(start(mix))
    assert all(torch.equal(m["dense1.weight"], models[0]["dense1.weight"]) for m in models)
    assert not torch.equal(models[0]["head.weight"], models[1]["head.weight"])
    same(mix.stack(models), start(mix), atol=0)
    params = {n: v.to(F64) for n, v in mix.model.init(0).items()}
    same(models[0], params, atol=0)  # the first is the model's own start


def test_models_that_start_alike_are_refused():
    model = build_model("logistic", input_shape=(5,), num_outputs=1, task="binary", init="zeros")
    mix = Mixture(model)
    with pytest.raises(ConfigError, match=r"start alike.*set method\.start=jitter"):
        mix.start(model.init(0), 2, np.random.default_rng(0))
    mix.start(model.init(0), 1, np.random.default_rng(0))  # one model has nothing to be apart from


def test_settling_finds_the_model_that_the_data_follow():
    mix = mixture("linear")
    theta = start(mix)
    y = X @ theta["head.weight"][2].T
    c = mix.settle(theta, Data(X, y, torch.ones(20, dtype=F64)), C, 4000, 5.0, 1e-6)
    torch.testing.assert_close(c, torch.tensor([0.0, 0, 1], dtype=F64), rtol=0, atol=5e-3)
