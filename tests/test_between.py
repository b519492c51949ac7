"""Weights between two models, learnt entry by entry: the kernel's numbers are autograd's."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedpers.checks.toy_data import toy_federation
from fedpers.clients.fedala import FedALAClient, FedALAConfig
from fedpers.core.params import between, split
from fedpers.core.plan import Plan
from fedpers.core.rng import Stream
from fedpers.engines.cohort import Cohort
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.runner import RunnerConfig
from fedpers.families.global_model.client import Weights
from fedpers.flower.messages import Header, Request
from fedpers.learning.between import minimise_between, passes_between
from fedpers.learning.kernels import native
from fedpers.learning.kernels.dispatch import autograd_only
from fedpers.learning.losses import Frozen
from fedpers.learning.optimizers import LocalConfig
from tests.test_dense import LOCALS, SGD, TASKS, both, close, net


def problem(task="classification", hidden=(9, 5)):
    """(model, samples, two models, weights that steps push below 0 and above 1)"""
    fed = toy_federation(1, (13,), dim=6, task=task)
    model = net(6, hidden, fed.num_classes, task)
    generator = torch.Generator().manual_seed(0)
    own, other = model.init(0), model.init(1)
    return (
        model,
        fed.client(0).train,
        own,
        other,
        {k: torch.rand(v.shape, generator=generator) for k, v in own.items()},
    )


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("part", ["head", "upper", "all"])
def test_weights_are_autograds(part, task):
    """With a short last batch, and with clipping at both ends."""
    model, data, own, other, W = problem(task)
    names = {"head": ("head",), "upper": ("head", "dense2"), "all": ("head", "dense2", "dense1")}[part]
    W = {k: v for k, v in W.items() if k.startswith(names)}
    loss = Frozen(model.loss, {k: v for k, v in other.items() if k not in W})

    def learn():
        return minimise_between(loss, own, other, W, data, Stream(0, 1, 0), SGD, 20.0)

    fast, slow = both(learn)
    close(fast, slow)
    every = torch.cat([v.flatten() for v in slow.values()])
    assert (every == 0).any() and (every == 1).any() and ((every > 0) & (every < 1)).any()


def test_what_is_no_number_is_not_clipped_to_one():
    model, data, own, other, W = problem(hidden=())
    data.x[3, 2] = torch.nan
    fast, slow = both(lambda: minimise_between(model.loss, own, other, W, data, Stream(0, 1, 0), SGD, 1.0))
    assert all(torch.equal(fast[k].isnan(), slow[k].isnan()) for k in W)
    assert any(slow[k].isnan().any() for k in W)


@pytest.mark.parametrize("local", LOCALS.values(), ids=LOCALS)
def test_only_the_minibatches_of_a_config_count(local):
    model, data, own, other, W = problem()

    def learn(local):
        with torch.no_grad():
            return minimise_between(model.loss, own, other, W, data, Stream(0, 1, 0), local, 0.5)

    bare = LocalConfig(epochs=local.epochs, steps=local.steps, batch_size=local.batch_size)
    close(learn(local), learn(bare))


def test_one_step_is_the_chain_rule_by_hand():
    """On a linear regression: W' = clip(W - η 2/n Σ_i (⟨w, x_i⟩ - y_i) x_i (b - a)), w = a + (b - a) W."""
    fed = toy_federation(1, (13,), dim=6, task="regression")
    model, data = net(6, (), 1, "regression", bias=False), fed.client(0).train
    a, b, W = ({"head.weight": t} for t in torch.rand(3, 1, 6, generator=torch.Generator().manual_seed(1)))
    with torch.no_grad():
        found = minimise_between(
            model.loss, a, b, W, data, Stream(0, 1, 0), LocalConfig(steps=1, batch_size=0), 0.3
        )
    off = data.x @ between(a, b, W)["head.weight"].T - data.y.reshape(-1, 1)
    slope = 2 / 13 * off.T @ data.x * (b["head.weight"] - a["head.weight"])
    torch.testing.assert_close(found["head.weight"], (W["head.weight"] - 0.3 * slope).clamp(0, 1))


@pytest.mark.parametrize("layers", [1, 2])
def test_fedala_in_stacks_of_unequal_clients_is_autograds(layers, monkeypatch):
    """In each of three visits; a stack trains its clients in one call."""
    fed = toy_federation(5, (9, 13, 6, 15, 11), dim=6)
    model = net(6, (9,), fed.num_classes)
    client = FedALAClient(FedALAConfig(5.0, layers=layers, local=replace(SGD, momentum=0.5)), model)
    calls, trained = [], native.train

    def train(plan, given, parts, *more, **options):
        calls.append(len({id(p) for p in parts}))
        return trained(plan, given, parts, *more, **options)

    monkeypatch.setattr(native, "train", train)

    def answers(runner):
        cohort = Cohort(client, fed, RamStore(), Plan(seed=1), runner)
        for t in (1, 2, 3):
            order = Weights(model.init(t))
            cohort.handle([Request(k, order, Header("train", t, 0)) for k in range(5)])
        return [cohort.store.states[k] for k in range(5)]

    loop = answers(RunnerConfig("loop"))
    assert max(calls) == 1
    whole = answers(RunnerConfig("stack", chunk=5))
    assert max(calls) > 1
    with autograd_only():
        slow = answers(RunnerConfig("loop"))
    for a, b, c in zip(loop, whole, slow, strict=True):
        assert a.passes == b.passes == c.passes
        for other in (b, c):
            close(a.own, other.own)
            close(a.W, other.W)
    assert any((w < 0.999).any() for state in whole for w in state.W.values())


@pytest.mark.parametrize("hidden", [(), (9, 5)], ids=str)
@pytest.mark.parametrize("part", ["head", "all"])
def test_passes_in_turn_are_each_from_the_one_before(part, hidden, monkeypatch):
    """By a kernel; on samples that are some of a client's, with a short last batch."""
    model, data, own, other, W = problem(hidden=hidden)
    if part == "head":
        W, _ = split(W, model.is_head)
    loss = Frozen(model.loss, {k: v for k, v in other.items() if k not in W})
    calls, trained = [], native.train
    monkeypatch.setattr(native, "train", lambda *args, **more: calls.append(1) or trained(*args, **more))

    def passes():
        some, rng = data.part(lambda n: np.arange(1, n)), Stream(0, 1, 0)
        found = passes_between(loss, own, other, W, some, rng, SGD, 5.0, 4)
        return {f"{i} {k}": v[i] for k, v in found.items() for i in range(4)}

    fast, slow = both(passes)
    assert len(calls) == 4 * (native.library() is not None)
    close(fast, slow)
    name = next(iter(W))
    assert all(not torch.equal(slow[f"{i} {name}"], slow[f"{i + 1} {name}"]) for i in range(3))


def test_what_is_not_weighed_stays():
    model, data, own, other, W = problem()
    head, _ = split(W, model.is_head)
    loss = Frozen(model.loss, {k: v for k, v in other.items() if k not in head})
    with torch.no_grad():
        assert minimise_between(loss, own, other, head, data, Stream(0, 1, 0), SGD, 0.5).keys() == head.keys()
