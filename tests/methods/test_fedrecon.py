"""FedRecon against a restatement; where its gradient differs from PFLEGO's."""

import numpy as np
import pytest
import torch

from fedpers.checks.contract import CHECKS
from fedpers.clients.fedrecon import FedReconConfig
from fedpers.method import LocalConfig
from tests.methods.helpers import (
    assert_close,
    config,
    contract_case,
    doubles,
    drawn_heads,
    initial_parts,
    network,
    samples,
    simulated,
    smoke,
)
from tests.oracles.fedrecon import one_round
from tests.oracles.pflego import gradients


def full_batch(lr, steps):
    return LocalConfig(lr=lr, steps=steps, batch_size=0)


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_contract_with_kept_heads(check):
    check(contract_case("fedrecon", FedReconConfig(start="kept")))


@pytest.mark.parametrize("start", ["initial", "kept"])
def test_rounds_equal_a_numpy_restatement(start):
    fed = doubles()
    model = network(fed, "mlp")
    cfg = FedReconConfig(full_batch(0.4, 3), full_batch(0.2, 2), start, rho=0.7)
    strategy, cohort = simulated("fedrecon", cfg, fed, model, 3, seed=1)
    g, first = initial_parts(model, 1)[0], drawn_heads(model, 1, fed)
    heads = first
    for _ in range(3):
        starts = heads if start == "kept" else first
        g, heads = one_round(g, starts, samples(fed), 0.4, 3, 0.2, 2, 0.7)
    assert_close(strategy.state.part, g)
    for k in range(6):
        assert_close(cohort.store.states[k].head, heads[k])


def test_kept_heads_and_server_sgd_are_fedalt():
    fed, head = doubles(), LocalConfig(lr=0.2, batch_size=4)
    body = LocalConfig(lr=0.1, batch_size=5)
    model, plan = network(fed, "mlp"), {"seed": 5, "clients_per_round": 4}
    ours, _ = simulated(
        "fedrecon", FedReconConfig(head, body, "kept", head_init="common"), fed, model, 3, **plan
    )
    theirs, _ = simulated("fedalt", config("fedalt", v=head, u=body), fed, model, 3, **plan)
    for name, value in theirs.state.part.items():
        torch.testing.assert_close(ours.state.part[name], value, rtol=0, atol=1e-14)


def test_one_step_of_rate_1_sends_the_gradient_under_the_new_head():
    fed = doubles(num_clients=1)
    model = network(fed, "mlp")
    cfg = FedReconConfig(full_batch(0.5, 1), full_batch(1.0, 1), "kept", rho=1.0)
    strategy, cohort = simulated("fedrecon", cfg, fed, model, seed=1)
    (x, y), (g, old) = samples(fed)[0], initial_parts(model, 1)
    head = cohort.store.states[0].head
    new = {"w": head["head.weight"].numpy(), "b": head["head.bias"].numpy()}
    want, joint = gradients(g, new, x, y)[1], gradients(g, old, x, y)[1]
    assert_close(strategy.state.part, {k: g[k] - want[k] for k in g})
    assert not np.allclose(want["w"], joint["w"])


def test_stateless_clients_reconstruct_before_they_predict():
    fed, cfg = doubles(), FedReconConfig(full_batch(0.5, 20), full_batch(0.1, 1))
    strategy, _ = simulated("fedrecon", cfg, fed, network(fed, "mlp"), 2)
    columns = strategy.client_metrics
    assert {"test_loss", "test_loss_before"} <= columns.keys()


def test_runs_on_digits(tmp_path):
    assert smoke("fedrecon", tmp_path)["rounds"] == 3
