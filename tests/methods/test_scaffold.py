"""SCAFFOLD against a restatement, and as FedAvg."""

import numpy as np
import pytest
import torch

from fedpers.clients.scaffold import ScaffoldConfig
from fedpers.method import LocalConfig, split
from tests.methods.helpers import (
    assert_close,
    chosen,
    config,
    doubles,
    initial_parts,
    network,
    samples,
    simulated,
    smoke,
)
from tests.oracles.scaffold import combine, scaffold_round

FED = doubles()
MODEL = network(FED, "mlp")


def assert_parts(params, parts):
    head, body = split(params, MODEL.is_head)
    assert_close(body, parts[0], 1e-12)
    assert_close(head, parts[1], 1e-12)


def test_rounds_with_some_clients_equal_a_numpy_restatement():
    cfg = ScaffoldConfig(0.8, LocalConfig(lr=0.2, steps=3, batch_size=0))
    server, cohort = simulated("scaffold", cfg, FED, MODEL, 4, seed=1, clients_per_round=4)
    x = initial_parts(MODEL, 1)
    c = combine(np.zeros_like, x)
    own = [c] * 6
    for t in range(1, 5):
        x, c, own = scaffold_round(x, c, own, samples(FED), chosen(server, t), 0.2, 3, 0.8)
    assert_parts(server.state.x, x)
    assert_parts(server.state.c, c)
    for k, state in cohort.store.states.items():
        assert_parts(state.c, own[k])


def test_one_full_batch_step_of_clients_of_equal_size_is_fedavg():
    fed, local = doubles(sizes=(8,)), LocalConfig(lr=0.3, batch_size=0)
    ours, _ = simulated("scaffold", ScaffoldConfig(1.0, local), fed, MODEL, 4)
    theirs, _ = simulated("fedavg", config("fedavg", local=local), fed, MODEL, 4)
    for k, value in theirs.state.params.items():
        torch.testing.assert_close(ours.state.x[k], value, rtol=0, atol=1e-13)


def test_after_one_step_a_control_variate_is_the_gradient():
    cfg = ScaffoldConfig(1.0, LocalConfig(lr=0.3, batch_size=0))
    _, cohort = simulated("scaffold", cfg, FED, MODEL, 1)
    params = {k: v.double().requires_grad_() for k, v in MODEL.init(0).items()}
    g = torch.autograd.grad(MODEL.loss(params, FED.client(2).train), params.values())
    for name, value in zip(params, g, strict=True):
        torch.testing.assert_close(cohort.store.states[2].c[name], value, rtol=0, atol=1e-12)


def test_the_servers_control_variate_stays_the_mean():
    cfg = ScaffoldConfig(1.0, LocalConfig(lr=0.2, epochs=2, batch_size=4))
    server, cohort = simulated("scaffold", cfg, FED, MODEL, 5, clients_per_round=3)
    for name, value in server.state.c.items():
        whole = sum(state.c[name] for state in cohort.store.states.values())
        torch.testing.assert_close(value, whole / 6, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("local", "start"),
    [
        (LocalConfig(momentum=0.9), "local: SCAFFOLD"),
        (LocalConfig(optimizer="adam"), "local: SCAFFOLD"),
        (LocalConfig(schedule="cosine", horizon=3), "local.schedule=cosine: SCAFFOLD"),
    ],
)
def test_what_would_spoil_the_control_variates_is_refused(local, start):
    (line,) = ScaffoldConfig(local=local).check()
    assert line.startswith(start)


def test_runs_on_digits(tmp_path):
    assert smoke("scaffold", tmp_path)["rounds"] == 3
