"""FedProx against a restatement, and as FedAvg."""

from collections import Counter

import numpy as np
import pytest
import torch

from fedpers.checks.contract import CHECKS, make_case
from fedpers.clients.fedavg import FedAvgClient, FedAvgConfig
from fedpers.clients.fedprox import FedProxClient, FedProxConfig
from fedpers.learning.model import initial_params
from fedpers.method import LocalConfig, Plan
from fedpers.simulate import simulate
from fedpers.strategies.fedavg import FedAvg
from fedpers.strategies.fedprox import FedProx
from tests.mixtures import blends, federation, linear
from tests.oracles.fedprox import fedprox_round

RNG = np.random.default_rng(0)
DATA = blends(RNG.dirichlet([1, 1], 5), RNG.normal(size=(2, 3)), [9, 12, 15, 8, 20], RNG, 0.1)
FED, MODEL = federation(DATA), linear(3)


def run(cfg, rounds, **plan):
    server = FedProx(cfg, MODEL, Plan(seed=1, dtype="float64", **plan))
    simulate(server, FedProxClient(cfg, MODEL), FED, rounds)
    return server


@pytest.mark.parametrize("check", CHECKS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("sampling", ["uniform", "proportional"])
def test_contract(check, sampling):
    check(make_case(FedProx, FedProxClient, FedProxConfig(sampling=sampling)))


def test_rounds_equal_the_numpy_restatement():
    server = run(FedProxConfig(mu=0.7, local=LocalConfig(0.05, steps=4, batch_size=0)), 3)
    w = initial_params(MODEL, server.plan)["head.weight"][0].numpy()
    for _ in range(3):
        w = fedprox_round(w, DATA, 0.7, 0.05, 4)
    np.testing.assert_allclose(server.state.params["head.weight"][0], w, atol=1e-13)


def test_without_pull_it_is_fedavg_bit_for_bit():
    local = LocalConfig(lr=0.05, epochs=2, batch_size=4)
    server = run(FedProxConfig(mu=0.0, local=local), 3, clients_per_round=3)
    cfg = FedAvgConfig(local)
    average = FedAvg(cfg, MODEL, server.plan)
    simulate(average, FedAvgClient(cfg, MODEL), FED, 3)
    assert torch.equal(server.state.params["head.weight"], average.state.params["head.weight"])


def test_a_strong_pull_keeps_the_model_where_it_is():
    local = LocalConfig(lr=1e-4, steps=50, batch_size=0)
    moved = []
    for mu in (0.0, 1e3):
        server = run(FedProxConfig(mu=mu, local=local), 1)
        start = initial_params(MODEL, server.plan)["head.weight"]
        moved.append(float((server.state.params["head.weight"] - start).norm()))
    assert moved[1] < 0.25 * moved[0]


def test_proportional_sampling_draws_by_size_and_takes_a_plain_mean():
    server = run(FedProxConfig(sampling="proportional"), 1, clients_per_round=1)
    rng = np.random.default_rng(0)
    times = Counter(server._proportional(rng)[0] for _ in range(4000))
    np.testing.assert_allclose([times[k] / 4000 for k in range(5)], FED.num_train / 64, atol=0.025)
