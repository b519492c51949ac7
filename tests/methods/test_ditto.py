"""Ditto: closed form on quadratics, and its reductions to FedAvg and local training."""

import pytest
import torch

from fedpers.clients.ditto import DittoConfig
from fedpers.method import LocalConfig
from tests.methods.helpers import config, doubles, network, quadratics, same, simulated, smoke
from tests.oracles.ditto import one_round, stationary_global, stationary_personal

A, C, N = (1.0, 4.0, 0.25), (-1.0, 0.5, 3.0), (2, 3, 5)


@pytest.mark.parametrize("batch_size", [0, 4])
def test_without_a_pull_personal_models_are_local_training(batch_size):
    fed, local = doubles(), LocalConfig(lr=0.3, epochs=2, batch_size=batch_size)
    model, plan = network(fed, "mlp"), {"seed": 5, "clients_per_round": 4}
    _, ours = simulated("ditto", DittoConfig(0.0, local), fed, model, 3, **plan)
    _, alone = simulated("local", config("local", local=local), fed, model, 3, **plan)
    assert ours.store.states.keys() == alone.store.states.keys()
    for k, memory in alone.store.states.items():
        assert same(ours.store.states[k].v, memory.params)


def test_the_global_model_is_fedavgs_whatever_the_pull():
    fed, local = doubles(), LocalConfig(lr=0.3, epochs=2, batch_size=0)
    model, plan = network(fed, "mlp"), {"seed": 5, "clients_per_round": 4}
    ours, _ = simulated("ditto", DittoConfig(0.7, local), fed, model, 3, **plan)
    theirs, _ = simulated("fedavg", config("fedavg", local=local), fed, model, 3, **plan)
    assert same(ours.state.params, theirs.state.params)


def test_rounds_on_quadratics_are_the_closed_form():
    fed, cfg = quadratics(A, C, N), DittoConfig(0.6, LocalConfig(lr=0.05, batch_size=0))
    model = network(fed, "linear", bias=False)
    w = float(model.init(0)["head.weight"])
    v = [w] * 3
    for _ in range(4):
        w, v = one_round(w, v, A, C, N, 0.6, 0.05)
    strategy, cohort = simulated("ditto", cfg, fed, model, 4)
    assert float(strategy.state.params["head.weight"]) == pytest.approx(w, abs=1e-14)
    found = [float(cohort.store.states[k].v["head.weight"]) for k in range(3)]
    assert found == pytest.approx(v, abs=1e-14)


@pytest.mark.parametrize("lam", [0.5, 5.0])
def test_it_converges_to_the_regularised_optimum(lam):
    fed, cfg = quadratics(A, C, N), DittoConfig(lam, LocalConfig(lr=0.12, batch_size=0))
    strategy, cohort = simulated("ditto", cfg, fed, network(fed, "linear", bias=False), 250, eval_every=0)
    w = stationary_global(A, C, N)
    assert float(strategy.state.params["head.weight"]) == pytest.approx(w, abs=1e-9)
    for k in range(3):
        want = stationary_personal(A[k], C[k], w, lam)
        assert float(cohort.store.states[k].v["head.weight"]) == pytest.approx(want, abs=1e-6)


def test_the_personal_model_is_what_is_tested():
    fed, cfg = doubles(), DittoConfig(0.1, LocalConfig(lr=0.3))
    model = network(fed)
    strategy, cohort = simulated("ditto", cfg, fed, model, 2)
    losses = [float(model.loss(cohort.store.states[k].v, fed.client(k).test)) for k in range(6)]
    assert strategy.client_metrics["test_loss"].tolist() == pytest.approx(losses, rel=1e-12)
    assert strategy.round_log.gradient_evals == 2 * int(fed.num_train.sum())
    assert not torch.equal(*(cohort.store.states[k].v["head.weight"] for k in (0, 1)))


def test_runs_on_digits(tmp_path):
    assert smoke("ditto", tmp_path)["rounds"] == 3
