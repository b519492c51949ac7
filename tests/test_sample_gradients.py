"""Gradients of single samples kept by their factors: the same numbers as gradients kept whole."""

from dataclasses import replace

import pytest
import torch

from fedpers.checks.case import close
from fedpers.checks.toy_data import toy_federation
from fedpers.clients import l2sgd
from fedpers.clients.l2sgd import L2SGDClient, L2SGDConfig
from fedpers.core.data import Data
from fedpers.core.params import sub
from fedpers.engines.cohort import Cohort
from fedpers.engines.inprocess_grid import InProcessGrid
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.runner import RunnerConfig
from fedpers.learning.gradients import model_gradient
from fedpers.learning.model import build_model
from fedpers.learning.sample_gradients import Factors, Whole, sample_gradients
from fedpers.method import Plan
from fedpers.strategies.l2sgd import L2SGD

SHAPES = {"logistic": {}, "mlp": {"hidden": [7, 6]}}
OUTPUTS = {"classification": 3, "binary": 1, "regression": 2}


def model(name="mlp", task="classification", **options):
    return build_model(
        name, input_shape=(5,), num_outputs=OUTPUTS[task], task=task, **SHAPES.get(name, {}), **options
    )


def sample(task, seed):
    rng = torch.Generator().manual_seed(seed)
    y = torch.randn(1, 2, generator=rng) if task == "regression" else torch.ones(1, dtype=torch.int64)
    return Data(torch.randn(1, 5, generator=rng), y, torch.ones(1))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "name, task",
    [("logistic", "classification"), ("linear", "regression"), ("mlp", "binary"), ("mlp", "regression"),
     ("mlp", "classification")],
)  # fmt: skip
def test_factors_are_those_of_the_gradient(name, task, bias):
    network, at = model(name, task, bias=bias), sample(task, 1)
    now, before = network.init(1), network.init(2)
    table = sample_gradients(network)
    assert isinstance(table, Factors)
    change = table.difference(table.take(now, at), table.take(before, at), at)
    assert change.keys() == now.keys()
    assert close(change, sub(*(model_gradient(network, w, at) for w in (now, before))), 1e-6)


def test_nothing_kept_is_a_gradient_of_0():
    network, at = model(), sample("classification", 1)
    w, table = network.init(1), sample_gradients(network)
    none = {k: v[:1] for k, v in table.zeros(w, 4).items()}
    assert {k: v.shape for k, v in table.take(w, at).items()} == {k: v.shape for k, v in none.items()}
    assert close(table.difference(table.take(w, at), none, at), model_gradient(network, w, at), 1e-6)


def test_other_networks_gradients_are_kept_whole():
    network = build_model("lenet", input_shape=(1, 12, 12), num_outputs=3, task="classification")
    assert isinstance(sample_gradients(network), Whole)
    assert isinstance(sample_gradients(replace(model(), network=network.network)), Whole)


def test_gradients_of_outputs_that_are_squashed_are_kept_whole(monkeypatch):
    network = model()
    monkeypatch.setattr(type(network.network), "softmax_head", True)
    assert isinstance(sample_gradients(network), Whole)


@pytest.mark.parametrize("runner", ["stack", "loop"])
@pytest.mark.parametrize("name", SHAPES)
def test_l2sgd_moves_as_with_whole_gradients(name, runner, monkeypatch):
    def run():
        fed, plan, cfg = toy_federation(sizes=(12, 9, 15)), Plan(seed=3, eval_every=0), L2SGDConfig(p=0.05)
        cohort = Cohort(L2SGDClient(cfg, model(name)), fed, RamStore(), plan, RunnerConfig(runner))
        L2SGD(cfg, model(name), plan).start(InProcessGrid(cohort), num_rounds=3)
        return [(s.x, s.psi, s.J_mean) for s in cohort.store.states.values()]

    found = run()
    monkeypatch.setattr(l2sgd, "sample_gradients", Whole)
    assert close(found, run(), 1e-5)
