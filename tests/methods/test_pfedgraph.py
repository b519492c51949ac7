"""pFedGraph against a restatement, its quadratic program, its groups, and as FedAvg."""

import numpy as np
import pytest
import torch

from fedpers.clients.pfedgraph import Aligned, PFedGraphConfig
from fedpers.core.items import ModelBatch
from fedpers.method import LocalConfig
from fedpers.strategies.pfedgraph import cosines, projected
from tests.methods.helpers import chosen, config, doubles, network, simulated, smoke
from tests.mixtures import blends, federation, linear
from tests.oracles.pfedgraph import cosine, pfedgraph_round, program

RNG = np.random.default_rng(0)
TWO = np.array([[1.0, 0.0]] * 3 + [[0.0, 1.0]] * 3)  # three clients follow each rule
DATA = blends(TWO, RNG.normal(size=(2, 3)), [9, 12, 15, 8, 20, 6], RNG, 0.1)
FED, MODEL = federation(DATA), linear(3)


@pytest.mark.parametrize(("alpha", "alike"), [(0.8, 0.9), (0.3, 1.0), (6.0, 0.5)])
def test_rounds_equal_a_numpy_restatement(alpha, alike):
    """Four of six unequal clients a round."""
    cfg = PFedGraphConfig(alpha, alike, 0.4, LocalConfig(lr=0.05, steps=4, batch_size=0))
    server, cohort = simulated("pfedgraph", cfg, FED, MODEL, 5, seed=1, clients_per_round=4)
    first = MODEL.init(1)["head.weight"][0].double().numpy()
    w, orders, graph = [first] * 6, {}, np.eye(6)
    for t in range(1, 6):
        now = chosen(server, t)
        w, orders, weights = pfedgraph_round(w, orders, first, DATA, now, 0.05, 4, 0.4, alpha, alike)
        for i in now:
            graph[i] = 0
            graph[i, now] = weights[i]
    for k, state in cohort.store.states.items():
        np.testing.assert_allclose(state.w["head.weight"][0], w[k], rtol=0, atol=1e-12)
    for k, (u, _) in orders.items():
        np.testing.assert_allclose(server.state.mixed[k].w["head.weight"][0], u, rtol=0, atol=1e-12)
    np.testing.assert_allclose(server.explain(server.state)["collaboration"], graph, rtol=0, atol=1e-12)


def test_a_projection_is_the_programs_solution():
    """Some weights are 0, and one client alone has weight 1."""
    d, q = RNG.normal(size=(20, 4)), RNG.dirichlet(np.ones(4), size=20)
    for alpha in (0.01, 0.3, 5.0):
        found = projected(q - d / (2 * alpha))
        for row, a, b in zip(found, d, q, strict=True):
            np.testing.assert_allclose(row, program(a, b, alpha), rtol=0, atol=1e-12)
    assert projected(np.array([[-7.0]])).tolist() == [[1.0]]


def test_cosines_are_those_of_changes_and_0_of_a_model_that_did_not_move():
    v = RNG.normal(size=(4, 3))
    v[1] = v[3]
    found = cosines(ModelBatch([{"w": torch.from_numpy(row)} for row in v]), 3)
    wanted = [[cosine(a - v[3], b - v[3]) for b in v[:3]] for a in v[:3]]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)


def test_without_a_pull_and_with_weights_at_the_shares_it_is_fedavg():
    fed, local = doubles(), LocalConfig(lr=0.3, epochs=2, batch_size=4)
    model = network(fed, "mlp")
    ours, _ = simulated("pfedgraph", PFedGraphConfig(1e12, lam=0.0, local=local), fed, model, 3, seed=5)
    mean, _ = simulated("fedavg", config("fedavg", local=local), fed, model, 3, seed=5)
    for mixed in ours.state.mixed.values():
        assert mixed.c == {}
        for name, value in mean.state.params.items():
            torch.testing.assert_close(mixed.w[name], value, rtol=0, atol=1e-10)


def test_clients_of_one_rule_find_each_other():
    cfg = PFedGraphConfig(0.05, 1.0, 0.0, LocalConfig(lr=0.1, steps=10, batch_size=0))
    server, _ = simulated("pfedgraph", cfg, FED, MODEL, 8)
    weights = server.explain(server.state)["collaboration"]
    group = np.equal.outer(TWO[:, 0], TWO[:, 0])
    assert weights[group].sum() > 5 * weights[~group].sum()


def test_a_model_that_is_0_has_a_finite_gradient():
    loss = Aligned(lambda w, batch: w["a"].sum() * 0, 0.5, {"a": torch.ones(3)})
    w = torch.zeros(3, requires_grad=True)
    (slope,) = torch.autograd.grad(loss({"a": w}, None), [w])
    assert slope.isfinite().all()


@pytest.mark.parametrize("values", [{"alpha": 0.0}, {"alike": 1.5}])
def test_what_it_cannot_be(values):
    (line,) = PFedGraphConfig(**values).check()
    assert line.startswith(f"{next(iter(values))}=")


def test_runs_on_digits(tmp_path):
    assert smoke("pfedgraph", tmp_path)["rounds"] == 3
