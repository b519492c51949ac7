"""Losses with a term of the features or with a second head: the kernel's numbers are autograd's."""

from dataclasses import replace

import pytest
import torch

from fedpers.checks.toy_data import toy_federation
from fedpers.clients.fedproto import FedProtoClient, FedProtoConfig
from fedpers.clients.fedrod import OWN, FedRoDClient, FedRoDConfig, TwoHeads
from fedpers.clients.moon import Contrastive, MoonClient, MoonConfig
from fedpers.core.params import split
from fedpers.core.plan import Plan
from fedpers.core.rng import Stream
from fedpers.engines.cohort import Cohort
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.runner import RunnerConfig
from fedpers.families.global_model.client import Weights
from fedpers.families.prototypes import Prototypes, Regularised
from fedpers.flower.messages import Header, Request
from fedpers.learning.kernels import native
from fedpers.learning.kernels.dispatch import autograd_only
from fedpers.learning.local_training import minimise_from
from fedpers.learning.model import build_model
from fedpers.learning.optimizers import init_optimizer
from tests.test_dense import LOCALS, SGD, TASKS, both, close, net

SIZES = (9, 13, 6, 15, 11)
LOSSES = ["pull", "contrast", "two heads"]


def loss_of(kind, model):
    """(a loss that differs from the model's own by more than rounding, parameters for it)"""
    params, K = model.init(0), model.num_outputs
    generator = torch.Generator().manual_seed(0)
    if kind == "contrast":
        return Contrastive(model, 3.0, 0.4, model.init(1), model.init(2)), params
    if kind == "pull":
        n = torch.arange(K).float()  # no prototype of class 0
        return Regularised(
            model, 5.0, Prototypes(torch.rand(K, model.num_features, generator=generator), n)
        ), params
    head = {
        OWN + k: torch.rand(v.shape, generator=generator) for k, v in split(params, model.is_head)[0].items()
    }
    return TwoHeads(model, torch.randn(K, generator=generator)), params | head


def trained(loss, params, data, local):
    """The parameters after local training, and the optimiser's moments."""
    w, opt = minimise_from(loss, params, init_optimizer(params, local), data, Stream(0, 1, 0), local)
    return w | {f"m.{k}": v for k, v in opt.m.items()} | {f"v.{k}": v for k, v in opt.v.items()}


def by_kernel_and_autograd(kind, model, data, local, monkeypatch):
    """Both trainings; the first must be the kernel's, and not that of the model's own loss."""
    loss, params = loss_of(kind, model)
    calls, train = [], native.train
    monkeypatch.setattr(
        native, "train", lambda *args, **more: calls.append(args[0].extra.kind) or train(*args, **more)
    )
    fast, slow = both(lambda: trained(loss, params, data, local))
    assert len(calls) == 1
    return calls[0], fast, slow


@pytest.mark.parametrize("hidden", [(9,), (20, 7), (40,)], ids=str)
@pytest.mark.parametrize("local", LOCALS.values(), ids=LOCALS)
@pytest.mark.parametrize("kind", LOSSES)
def test_every_optimiser_is_autograds(kind, local, hidden, monkeypatch):
    """With a short last batch; features are narrower and wider than a register."""
    fed = toy_federation(1, (13,), dim=6)
    model = net(6, hidden, fed.num_classes)
    code, fast, slow = by_kernel_and_autograd(kind, model, fed.client(0).train, local, monkeypatch)
    assert code
    close(fast, slow)
    with torch.no_grad():
        plain = trained(model.loss, model.init(0), fed.client(0).train, local)
    assert not torch.allclose(plain["dense1.weight"], fast["dense1.weight"], atol=1e-3)


@pytest.mark.parametrize("task", TASKS)
def test_a_contrast_of_every_task_is_autograds(task, monkeypatch):
    fed = toy_federation(1, (13,), dim=6, task=task)
    model = net(6, (9,), fed.num_classes, task)
    _, fast, slow = by_kernel_and_autograd("contrast", model, fed.client(0).train, SGD, monkeypatch)
    close(fast, slow)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", LOSSES)
def test_models_without_a_body_have_no_feature_to_move(kind, bias, monkeypatch):
    """The terms are constants there; a second head is one all the same."""
    fed = toy_federation(1, (13,), dim=6)
    model = net(6, (), fed.num_classes, bias=bias)
    code, fast, slow = by_kernel_and_autograd(kind, model, fed.client(0).train, SGD, monkeypatch)
    assert bool(code) == (kind == "two heads")
    close(fast, slow)


@pytest.mark.parametrize("kind", LOSSES)
def test_above_small_convolutions_they_are_autograds(kind, monkeypatch):
    fed = toy_federation(1, (13,), dim=144)
    data = fed.client(0).train
    data = replace(data, x=data.x.reshape(-1, 1, 12, 12))
    model = build_model("lenet", input_shape=(1, 12, 12), num_outputs=fed.num_classes, task="classification")
    code, fast, slow = by_kernel_and_autograd(kind, model, data, SGD, monkeypatch)
    assert code
    close(fast, slow)


def test_features_that_are_off_or_nearly_so_have_no_angle():
    """Nor do they make a number that is none, the client's own or another model's."""
    fed = toy_federation(1, (13,), dim=6)
    model, data = net(6, (9,), fed.num_classes), fed.client(0).train
    off = {"dense1.bias": torch.full((9,), -100.0)}
    tiny = {"dense1.weight": torch.zeros(9, 6), "dense1.bias": torch.full((9,), 1e-9)}
    once = replace(SGD, epochs=0, steps=1)
    for own, shared, local in ((off, {}, SGD), ({}, off, SGD), (tiny, {}, once)):
        loss = Contrastive(model, 3.0, 0.4, model.init(1) | shared, model.init(2))
        fast, slow = both(
            lambda loss=loss, own=own, local=local: trained(loss, model.init(0) | own, data, local)
        )
        close(fast, slow)
        assert all(torch.isfinite(v).all() for v in fast.values())


def test_one_step_of_a_pull_is_its_derivative_by_hand():
    """Of one linear layer and ReLU: the step has λ each_i 2/M (z_i - near_i) 1[z_i > 0] x_i / n more."""
    fed = toy_federation(1, (13,), dim=6)
    model, data = net(6, (9,), fed.num_classes), fed.client(0).train
    local = replace(SGD, epochs=0, steps=1, batch_size=0)
    loss, params = loss_of("pull", model)
    with torch.no_grad():
        plain, pulled = (trained(f, params, data, local) for f in (model.loss, loss))
    z, near = model.body(params, data.x), loss.prototypes.C[data.y]
    slope = 5.0 * 2 / 9 / 13 * (data.y > 0)[:, None] * (z - near) * (z > 0)
    moved = plain["dense1.weight"] - pulled["dense1.weight"]
    torch.testing.assert_close(moved, local.lr * slope.T @ data.x, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(plain["head.weight"], pulled["head.weight"])


def answers(client, order, runner):
    """(reply, state) of five unequal clients in two rounds; those of one padded size share a stack."""
    fed = toy_federation(5, SIZES, dim=6)
    cohort = Cohort(client, fed, RamStore(), Plan(seed=1), runner)
    for t in (1, 2):
        found = cohort.handle([Request(k, order(t), Header("train", t, 0)) for k in range(5)])
    return [(a.body, cohort.store.states[k]) for k, a in enumerate(found)]


def tensors(pair):
    reply, state = pair
    rows = [getattr(reply, "params", None) or vars(reply), *(v for v in vars(state).values())]
    return {f"{i}.{k}": v for i, row in enumerate(rows) for k, v in row.items()}


@pytest.mark.parametrize("local", [SGD, replace(SGD, batch_size=0)], ids=["batches", "whole"])
@pytest.mark.parametrize("name", ["fedproto", "fedrod", "moon"])
def test_stacks_of_unequal_clients_are_autograds(name, local, monkeypatch):
    """Padded rows and padded batches have no part; whatever the stack, the kernel is called once for it."""
    model = net(6, (9,), 4)
    C = torch.rand(4, 9, generator=torch.Generator().manual_seed(0))
    orders = {t: Weights(model.init(t)) for t in (1, 2)}
    known = {t: Prototypes(C * t, torch.tensor([2.0, 0.0, 1.0, 5.0])) for t in (1, 2)}
    client, order = {
        "fedproto": (FedProtoClient(FedProtoConfig(2.0, local), model), known),
        "fedrod": (FedRoDClient(FedRoDConfig(local), model), orders),
        "moon": (MoonClient(MoonConfig(2.0, 0.4, local), model), orders),
    }[name]
    calls, train = [], native.train
    monkeypatch.setattr(
        native, "train", lambda *args, **more: calls.append(len(args[2])) or train(*args, **more)
    )
    loop = answers(client, order.get, RunnerConfig("loop"))
    assert calls == [1] * 10
    with autograd_only():
        slow = answers(client, order.get, RunnerConfig("loop"))
    for chunk in (5, 2):
        calls.clear()
        stacks = answers(client, order.get, RunnerConfig("stack", chunk=chunk))
        assert max(calls) > 1
        for a, b, c in zip(loop, stacks, slow, strict=True):
            close(tensors(a), tensors(b))
            close(tensors(b), tensors(c))


def test_tensors_of_another_size_are_torchs_error_and_no_stray_read():
    fed = toy_federation(1, (13,), dim=6)
    model, data = net(6, (9,), fed.num_classes), fed.client(0).train
    wrong = Regularised(model, 1.0, Prototypes(torch.zeros(fed.num_classes, 8), torch.ones(fed.num_classes)))
    short = TwoHeads(model, torch.zeros(fed.num_classes + 1))
    for loss, params in ((wrong, model.init(0)), (short, loss_of("two heads", model)[1])):
        with torch.no_grad(), pytest.raises(RuntimeError):
            trained(loss, params, data, SGD)
