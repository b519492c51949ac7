"""MOON against a restatement, and as FedAvg."""

import numpy as np
import pytest
import torch

from fedpers.clients.moon import MoonConfig, cosine
from fedpers.method import LocalConfig, grad, split
from tests.methods.helpers import (
    assert_close,
    chosen,
    config,
    doubles,
    initial_parts,
    network,
    same,
    samples,
    simulated,
    smoke,
)
from tests.oracles.moon import moon_round

FED = doubles()
MODEL = network(FED, "mlp", hidden=[8])
PLAN = {"seed": 1, "clients_per_round": 4}


def test_rounds_equal_a_numpy_restatement():
    cfg = MoonConfig(0.8, 0.4, LocalConfig(lr=0.2, epochs=3, batch_size=0))
    server, cohort = simulated("moon", cfg, FED, MODEL, 4, **PLAN)
    body, head = initial_parts(MODEL, 1)
    previous = [body] * 6
    for t in range(1, 5):
        now = chosen(server, t)
        body, head, previous = moon_round(body, head, previous, samples(FED), now, 0.2, 3, 0.8, 0.4)
    phi, theta = split(server.state.params, MODEL.is_head)
    assert_close(theta, body, 1e-12)
    assert_close(phi, head, 1e-12)
    for i, state in cohort.store.states.items():
        assert_close(split(state.previous, MODEL.is_head)[1], previous[i], 1e-12)


def test_without_the_contrast_it_is_fedavg_bit_for_bit():
    local = LocalConfig(lr=0.3, epochs=2, batch_size=4)
    ours, _ = simulated("moon", MoonConfig(0.0, local=local), FED, MODEL, 3, **PLAN)
    theirs, _ = simulated("fedavg", config("fedavg", local=local), FED, MODEL, 3, **PLAN)
    assert same(ours.state.params, theirs.state.params)


def test_without_a_body_it_is_fedavg_whatever_the_weight():
    local, model = LocalConfig(lr=0.3, epochs=2, batch_size=4), network(FED)
    ours, _ = simulated("moon", MoonConfig(5.0, local=local), FED, model, 3, **PLAN)
    theirs, _ = simulated("fedavg", config("fedavg", local=local), FED, model, 3, **PLAN)
    for name, value in theirs.state.params.items():
        torch.testing.assert_close(ours.state.params[name], value, rtol=0, atol=1e-13)


def test_the_cosine_and_its_gradient():
    rng = np.random.default_rng(0)
    a, b = (torch.from_numpy(rng.normal(size=(4, 3))) for _ in range(2))
    torch.testing.assert_close(cosine(a, b), torch.nn.functional.cosine_similarity(a, b))
    assert torch.autograd.gradcheck(cosine, (a.requires_grad_(), b.requires_grad_()))
    zero = torch.zeros(1, 3, dtype=torch.float64)  # features may all be off
    slope = grad(lambda z: cosine(z, b[:1].detach()).sum())(zero)
    assert torch.isfinite(slope).all() and float(cosine(zero, b[:1].detach())) == 0


@pytest.mark.parametrize("values", [{"mu": -1.0}, {"tau": 0.0}])
def test_what_it_cannot_be(values):
    (line,) = MoonConfig(**values).check()
    assert line.startswith(f"{next(iter(values))}=")


def test_runs_on_digits(tmp_path):
    assert smoke("moon", tmp_path)["rounds"] == 3
