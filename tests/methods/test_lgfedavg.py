"""LG-FedAvg against a restatement, and its reduction to FedAvg."""

import numpy as np

from fedpers.clients.lgfedavg import LGFedAvgConfig
from fedpers.method import LocalConfig
from tests.methods.helpers import (
    assert_close,
    config,
    doubles,
    initial_parts,
    network,
    same,
    samples,
    simulated,
    smoke,
)
from tests.oracles.lgfedavg import one_round


def test_on_logistic_regression_it_is_fedavg_bit_for_bit():
    fed, local = doubles(), LocalConfig(lr=0.3, epochs=2, batch_size=4)
    model, plan = network(fed), {"seed": 5, "clients_per_round": 4}
    ours, _ = simulated("lgfedavg", LGFedAvgConfig(local), fed, model, 3, **plan)
    theirs, _ = simulated("fedavg", config("fedavg", local=local), fed, model, 3, **plan)
    assert same(ours.state.part, theirs.state.params)
    for column, values in theirs.client_metrics.items():
        np.testing.assert_array_equal(ours.client_metrics[column], values)


def test_rounds_equal_a_numpy_restatement():
    fed = doubles()
    model, cfg = network(fed, "mlp"), LGFedAvgConfig(LocalConfig(lr=0.3, epochs=2, batch_size=0))
    strategy, cohort = simulated("lgfedavg", cfg, fed, model, 3, seed=1)
    body, head = initial_parts(model, 1)
    bodies = [body] * 6
    for _ in range(3):
        bodies, head = one_round(bodies, head, samples(fed), 0.3, 2)
    assert_close(strategy.state.part, head)
    for k in range(6):
        assert_close(cohort.store.states[k].own, bodies[k])


def test_runs_on_digits(tmp_path):
    assert smoke("lgfedavg", tmp_path)["rounds"] == 3
