"""Gradients both ways, and the training loop against torch.optim."""

import pytest
import torch

from fedpers.core.data import Data
from fedpers.core.rng import Stream
from fedpers.core.vmap import over_rows
from fedpers.engines.stacked_data import StackedStream
from fedpers.learning.gradients import grad, stacked
from fedpers.learning.kernels import native as native_kernels
from fedpers.learning.kernels.scoring import losses_of
from fedpers.learning.local_training import minimise, minimise_from
from fedpers.learning.minibatches import minibatches
from fedpers.learning.model import build_model
from fedpers.learning.optimizers import LocalConfig, init_optimizer

MODEL = build_model("mlp", input_shape=(5,), num_outputs=3, task="classification", hidden=[4])


def data(n=23, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 5, generator=g, dtype=torch.float64)
    return Data(x, torch.randint(0, 3, (n,), generator=g), torch.ones(n, dtype=torch.float64))


def start():
    return {k: v.double() for k, v in MODEL.init(0).items()}


CONFIGS = {
    "sgd": LocalConfig(lr=0.1, epochs=2, batch_size=5),
    "momentum": LocalConfig(lr=0.1, epochs=2, batch_size=5, momentum=0.9, weight_decay=0.01),
    "adam": LocalConfig(lr=0.01, epochs=2, batch_size=5, optimizer="adam", weight_decay=0.01),
    "full batch": LocalConfig(lr=0.1, epochs=3, batch_size=0),
    "steps": LocalConfig(lr=0.1, steps=7, batch_size=4),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_loop_is_torch_optims(name):
    cfg, part = CONFIGS[name], data()
    w = minimise(MODEL.loss, start(), part, Stream(1, 2, 3), cfg)

    leaf = {k: v.requires_grad_() for k, v in start().items()}
    if cfg.optimizer == "adam":
        optimizer = torch.optim.Adam(leaf.values(), lr=cfg.lr, weight_decay=cfg.weight_decay)
    else:
        optimizer = torch.optim.SGD(leaf.values(), cfg.lr, cfg.momentum, weight_decay=cfg.weight_decay)
    for batch in minibatches(part, Stream(1, 2, 3), cfg):
        optimizer.zero_grad()
        kept = batch.mask > 0
        MODEL.sample_losses(MODEL(leaf, batch.x[kept]), batch.y[kept]).mean().backward()
        optimizer.step()
    for k, v in w.items():
        torch.testing.assert_close(v, leaf[k].detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_a_kept_optimiser_goes_on_where_it_was(name):
    cfg, part = CONFIGS[name], data(20)
    whole = LocalConfig(**{**vars(cfg), "batch_size": 0, "epochs": 4})
    half = LocalConfig(**{**vars(cfg), "batch_size": 0, "epochs": 2})
    rng = Stream(0, 0, 0)
    w, opt = minimise_from(MODEL.loss, start(), init_optimizer(start(), half), part, rng, half)
    w, _ = minimise_from(MODEL.loss, w, opt, part, rng, half)
    once = minimise(MODEL.loss, start(), part, rng, whole)
    assert all(torch.equal(w[k], once[k]) for k in w)


def test_nothing_is_written_in_place():
    w, part = start(), data()
    before = {k: v.clone() for k, v in w.items()}
    minimise(MODEL.loss, w, part, Stream(0, 0, 0), CONFIGS["momentum"])
    assert all(torch.equal(before[k], w[k]) for k in w)
    assert not any(v.requires_grad for v in w.values())


def test_an_epoch_sees_every_sample_once():
    part = data(23)
    seen = [b.x[b.mask > 0] for b in minibatches(part, Stream(0, 1, 2), LocalConfig(batch_size=5))]
    rows = torch.cat(seen)
    assert rows.shape == part.x.shape
    assert torch.equal(rows.sort(0).values, part.x.sort(0).values)
    assert [len(s) for s in seen] == [5, 5, 5, 5, 3]


@pytest.mark.parametrize("cfg", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("n", [1, 4, 5, 23])
def test_work_counts_the_samples_of_the_batches(cfg, n):
    batches = list(minibatches(data(n), Stream(0, 1, 2), cfg))
    assert cfg.work(n) == int(sum(float(b.mask.sum()) for b in batches))
    assert cfg.num_steps(n) == len(batches)


def test_both_gradients_agree():
    part = data()

    def f(head, body):
        return MODEL.loss(head | body, part)

    head = {k: v for k, v in start().items() if MODEL.is_head(k)}
    body = {k: v for k, v in start().items() if not MODEL.is_head(k)}
    one = grad(f, argnums=(0, 1))(head, body)
    with stacked():
        other = grad(f, argnums=(0, 1))(head, body)
    for a, b in zip(one, other, strict=True):
        for k in a:
            torch.testing.assert_close(a[k], b[k], rtol=0, atol=1e-15)


@pytest.mark.parametrize("recorded", [False, True])
def test_a_gradient_may_be_differentiated_alone_as_in_a_stack(recorded):
    """MAML's gradient (I - α ∇²f(w)) ∇f(w - α ∇f(w))."""
    part, alpha, w = data(), 0.5, start()

    def after_a_step(w, batch):
        g = grad(MODEL.loss)(w, batch)
        return MODEL.loss({k: v - alpha * g[k] for k, v in w.items()}, batch)

    with torch.set_grad_enabled(recorded):
        alone = grad(after_a_step)(w, part)
        with stacked():
            other = grad(after_a_step)(w, part)
    flat, shapes = list(w.values()), [v.shape for v in w.values()]

    def f(*values):
        return MODEL.loss(dict(zip(w, values, strict=True)), part)

    g = torch.autograd.functional.jacobian(f, tuple(flat))
    there = torch.autograd.functional.jacobian(f, tuple(v - alpha * d for v, d in zip(flat, g, strict=True)))
    hessian = torch.autograd.functional.hessian(f, tuple(flat))
    for i, name in enumerate(w):
        pulled = sum((h.reshape(-1, d.numel()) @ d.flatten()) for h, d in zip(hessian[i], there, strict=True))
        expected = there[i] - alpha * pulled.view(shapes[i])
        torch.testing.assert_close(alone[name], expected, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(other[name], expected, rtol=1e-9, atol=1e-12)
        assert not alone[name].requires_grad


def test_a_parameter_without_influence_has_gradient_zero():
    g = grad(lambda p: (p["a"] ** 2).sum())({"a": torch.ones(2), "b": torch.ones(3)})
    assert torch.equal(g["b"], torch.zeros(3))


def test_bad_values_are_all_reported():
    problems = LocalConfig(lr=-1, epochs=-2, momentum=1.5).check()
    assert len(problems) == 3


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [0, 4])
def test_samples_that_all_clients_of_a_stack_share_are_not_taken_for_their_own(
    monkeypatch, native, dtype, size
):
    """As many as the largest client has: minibatches are of all samples, in each client's own order."""
    if not native:
        monkeypatch.setattr(native_kernels, "library", lambda: None)
    part, n = data(12), 12
    part = Data(part.x.to(dtype), part.y, part.mask.to(dtype))
    starts = [{k: v.to(dtype) for k, v in MODEL.init(s).items()} for s in range(3)]
    cfg = LocalConfig(lr=0.1, epochs=2, batch_size=size)
    streams, names = [[Stream(1, 2, k) for k in range(3)] for _ in "ab"], list(starts[0])
    alone = [minimise(MODEL.loss, w, part, rng, cfg) for w, rng in zip(starts, streams[0], strict=True)]

    def one(i, *rows):
        w = dict(zip(names, rows, strict=True))
        rng = StackedStream(i, streams[1], [n, 7, 9], n)
        found = minimise(MODEL.loss, w, part, rng, cfg)
        return [*found.values(), losses_of(MODEL.loss, {k: v[None] for k, v in found.items()}, part)]

    with stacked(), torch.no_grad():
        *found, losses = over_rows(
            one, torch.arange(3), *(torch.stack([w[k] for w in starts]) for k in names)
        )
    for name, value in zip(names, found, strict=True):
        torch.testing.assert_close(value, torch.stack([w[name] for w in alone]), rtol=0, atol=1e-6)
    wanted = torch.stack([MODEL.loss(w, part) for w in alone])
    torch.testing.assert_close(losses[:, 0], wanted, rtol=1e-5, atol=1e-6)
