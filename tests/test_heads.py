"""Training a head on cached features: the same steps as through the body, in one call of a kernel."""

from dataclasses import replace

import pytest
import torch

from fedpers.checks.case import same
from fedpers.checks.toy_data import toy_federation
from fedpers.clients.fedper import FedPerClient, FedPerConfig
from fedpers.clients.pflego import PFLEGOClient, PFLEGOConfig
from fedpers.core.params import split
from fedpers.core.pytree import neighbours
from fedpers.engines.cohort import Cohort
from fedpers.engines.inprocess_grid import InProcessGrid
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.runner import RunnerConfig
from fedpers.families.split_models.heads import first_head, fit_head, initial_heads
from fedpers.learning.gradients import grad, stacked
from fedpers.learning.kernels import native
from fedpers.learning.local_training import minimise
from fedpers.learning.losses import Frozen
from fedpers.learning.model import build_model
from fedpers.method import LocalConfig, Plan, Stream
from fedpers.strategies.pflego import PFLEGO

FED = toy_federation(5, (9, 14, 6, 9, 11))
MODEL = build_model("mlp", input_shape=(5,), num_outputs=3, task="classification", hidden=[7])
LOCALS = {
    "full batch": LocalConfig(0.1, steps=6, batch_size=0),
    "minibatches": LocalConfig(0.1, epochs=3, batch_size=4),
    "momentum": LocalConfig(0.1, steps=5, batch_size=4, momentum=0.9, weight_decay=0.01),
    "Adam": LocalConfig(0.05, epochs=2, batch_size=5, optimizer="adam"),
}


@pytest.mark.parametrize("local", LOCALS.values(), ids=LOCALS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # by the kernel, by autograd
def test_cached_features_change_no_step(local, dtype):
    fed = toy_federation(1, (14,), dtype=dtype)
    data, params = fed.client(0).train, {k: v.to(dtype) for k, v in MODEL.init(1).items()}
    head, body = split(params, MODEL.is_head)
    with torch.no_grad():
        got = fit_head(MODEL, body, head, data, Stream(0, 1, 0), local)
        want = minimise(Frozen(MODEL.loss, body), head, data, Stream(0, 1, 0), local)
    tolerance = 1e-12 if dtype == torch.float64 else 2e-6  # rounding of the two ways
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, rtol=0, atol=tolerance)
        assert not torch.allclose(got[name], head[name])


def rounds(tau, runner, monkeypatch, calls):
    """Server state and clients' heads after two rounds; `calls` collects the kernel's calls."""
    call = native.call
    monkeypatch.setattr(native, "call", lambda *a: calls.append(1) or call(*a))
    cfg = PFLEGOConfig(tau=tau, beta=0.2, rho=0.1)
    strategy = PFLEGO(cfg, MODEL, Plan(seed=3, clients_per_round=4, eval_every=0))
    cohort = Cohort(PFLEGOClient(cfg, MODEL), FED, RamStore(), strategy.plan, RunnerConfig(runner))
    strategy.configure_evaluate = lambda *a: []
    strategy.start(InProcessGrid(cohort), num_rounds=2)
    monkeypatch.undo()
    return strategy.state.part, {k: s.head for k, s in cohort.store.states.items()}


def test_all_head_steps_of_a_stack_and_the_joint_gradient_are_one_call(monkeypatch):
    """However many steps: a call for each of three padded sizes in each of two rounds."""
    if native.library() is None:
        pytest.skip("no C compiler")
    for tau in (1, 2, 12):
        calls = []
        rounds(tau, "stack", monkeypatch, calls)
        assert len(calls) == 2 * 3


def test_a_stack_of_cached_features_is_each_client_alone(monkeypatch):
    """Unequal clients, padded in a stack; four of five take part."""
    body, heads = rounds(6, "stack", monkeypatch, [])
    alone, own = rounds(6, "loop", monkeypatch, [])
    for name, value in alone.items():
        torch.testing.assert_close(body[name], value, rtol=0, atol=1e-6)
    assert heads.keys() == own.keys()
    for k, head in own.items():
        for name, value in head.items():
            torch.testing.assert_close(heads[k][name], value, rtol=0, atol=1e-6)


def test_a_gradient_through_cached_features_is_not_lost():
    """Whoever differentiates through a training gets plain tensors and no block."""
    data = FED.client(1).train
    head, body = split(MODEL.init(1), MODEL.is_head)
    local = LOCALS["full batch"]

    def after(body):
        fitted = fit_head(MODEL, body, head, data, Stream(0, 1, 1), replace(local, steps=2))
        return MODEL.loss(body | fitted, data)

    step = 1e-3
    with stacked():
        found = grad(after)(body)
    name = next(iter(body))
    moved = torch.zeros_like(body[name])
    moved[0, 0] = step
    ends = [float(after(body | {name: body[name] + sign * moved})) for sign in (1, -1)]
    assert float(found[name][0, 0]) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=2e-2, abs=2e-4)


@pytest.mark.parametrize("own_classes", [False, True])
@pytest.mark.parametrize("how", ["default", "uniform01", "common"])
@pytest.mark.parametrize("start", ["default", "xavier_normal"])
def test_heads_drawn_together_are_those_drawn_alone(how, own_classes, start):
    model = replace(MODEL, start=start)
    params, data = model.init(1), [FED.client(k).train for k in range(5)]
    together = initial_heads(model, params, data, [Stream(3, 0, k) for k in range(5)], how, own_classes)
    for k, head in enumerate(together):
        alone = first_head(model, params, data[k], Stream(3, 0, k), how, own_classes)
        assert list(head) == list(alone)
        assert all(torch.equal(head[name], value) for name, value in alone.items())


@pytest.mark.parametrize("how", ["default", "common"])
@pytest.mark.parametrize("met", [(), (4,), (0, 9), (3, 1, 15), tuple(range(16))], ids=str)
def test_who_was_met_before_keeps_its_head_among_new_ones(how, met):
    """Also where the new ones' stack has room for it, and where all first heads are one and the same."""
    fed = toy_federation(16, (9,))
    client = FedPerClient(FedPerConfig(head_init=how), MODEL)
    cohort = Cohort(client, fed, RamStore(), Plan(seed=3), RunnerConfig())
    first = {k: v.clone() for k, v in cohort.params.items()}
    kept = {k: client.initial_state(cohort.params, fed.client(k).train, Stream(3, 0, k)) for k in range(16)}
    for k in met:
        kept[k] = replace(kept[k], own={name: v + k + 1 for name, v in kept[k].own.items()})
        cohort.store.put(k, (1, 0), kept[k])
    order = [*range(8, 16), *range(8)]
    found = cohort.states([(k, (2, 0)) for k in order])
    assert all(same(state, kept[k]) for k, state in zip(order, found, strict=True))
    assert all(same(cohort.store.states[k], kept[k]) for k in met)
    assert same(cohort.params, first)
    whole = all(neighbours([s.own[name] for s in found]) is not None for name in found[0].own)
    assert whole == (how == "default" and len(met) <= 2)
