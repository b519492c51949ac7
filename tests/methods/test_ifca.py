"""IFCA against a restatement, by hand, and as FedAvg."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedpers.checks.contract import CHECKS, make_case
from fedpers.clients.fedavg import FedAvgClient, FedAvgConfig
from fedpers.clients.ifca import IFCAClient, IFCAConfig
from fedpers.engines.cohort import Cohort
from fedpers.engines.inprocess_grid import InProcessGrid
from fedpers.engines.memory.client_store import RamStore
from fedpers.learning.model import initial_params
from fedpers.method import LocalConfig, Plan
from fedpers.simulate import simulate
from fedpers.strategies.fedavg import FedAvg
from fedpers.strategies.ifca import IFCA
from tests.mixtures import blends, federation, linear
from tests.oracles.ifca import ifca_round

RNG = np.random.default_rng(0)
THETA = np.array([[2.0, 0.0, 1.0], [-2.0, 1.0, 0.0]])
DATA = blends(np.eye(2)[[0, 1, 0, 1, 0]], THETA, [9, 12, 15, 8, 20], RNG, 0.1)
FED, MODEL = federation(DATA), linear(3)
ONE = LocalConfig(lr=0.03, steps=1, batch_size=0)


def tensors(array):
    """A center per row."""
    return tuple({"head.weight": torch.tensor(row)[None].double()} for row in np.asarray(array))


def run(rounds, centers=THETA + 0.4, **options):
    """The strategy, and its clients' side, after some rounds with everybody from given centers."""
    cfg = IFCAConfig(S=len(centers), local=ONE, **options)
    server = IFCA(cfg, MODEL, Plan(dtype="float64"))
    cohort = Cohort(IFCAClient(cfg, MODEL), FED, RamStore(), server.plan)
    grid = InProcessGrid(cohort)
    server.connect(grid)
    server.state = replace(server.state, centers=tensors(centers))
    server.start(grid, num_rounds=rounds)
    return server, cohort


def arrays(server):
    return np.stack([c["head.weight"][0].numpy() for c in server.state.centers])


@pytest.mark.parametrize("check", CHECKS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("averaging", ["model", "gradient"])
def test_contract(check, averaging):
    check(make_case(IFCA, IFCAClient, IFCAConfig(averaging=averaging)))


@pytest.mark.parametrize("gamma", [None, 0.2])
def test_rounds_equal_the_numpy_restatement(gamma):
    options = {"averaging": "gradient", "gamma": gamma} if gamma else {}
    server, cohort = run(3, **options)
    centers = THETA + 0.4
    for _ in range(3):
        centers, chosen = ifca_round(centers, DATA, 0.03, gamma)
    np.testing.assert_allclose(arrays(server), centers, atol=1e-12)
    assert server.state.identity.argmax(1).tolist() == chosen == [0, 1, 0, 1, 0]
    assert not cohort.store.states


def test_right_clusters_are_found_and_learnt():
    server, _ = run(200)
    np.testing.assert_allclose(arrays(server), THETA, atol=0.1)  # noise of variance 0.01
    assert server.client_metrics["test_loss"].max() < 0.05


def test_a_cluster_without_clients_stays():
    far = np.vstack([THETA, [[50.0, 50.0, 50.0]]])
    for averaging in ("model", "gradient"):
        server, _ = run(2, far, averaging=averaging)
        assert arrays(server)[2].tolist() == [50.0] * 3


def test_clients_predict_in_the_cluster_that_fits_by_now():
    """Also those that were never asked."""
    cfg = IFCAConfig(local=ONE)
    server = IFCA(cfg, MODEL, Plan(dtype="float64", clients_per_round=1))
    simulate(server, IFCAClient(cfg, MODEL), FED, 1)
    losses = [[np.mean((x @ c - y) ** 2) for c in arrays(server)] for x, y in DATA]
    np.testing.assert_allclose(server.client_metrics["test_loss"], np.min(losses, 1), rtol=1e-12)
    seen = server.state.identity.max(1).values == 1
    assert int(seen.sum()) == 1


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_one_cluster_is_fedavg_with_its_weights(weighting):
    """By samples exactly FedAvg; with plain means FedAvg on clients of equal size."""
    local = LocalConfig(lr=0.05, batch_size=4)
    fed = (
        FED
        if weighting == "samples"
        else federation(blends(np.full((4, 2), 0.5), THETA, [12] * 4, np.random.default_rng(1)))
    )
    cfg = IFCAConfig(S=1, weighting=weighting, local=local)
    server = IFCA(cfg, MODEL, Plan(dtype="float64"))
    grid = InProcessGrid(Cohort(IFCAClient(cfg, MODEL), fed, RamStore(), server.plan))
    server.connect(grid)
    server.state = replace(server.state, centers=(initial_params(MODEL, server.plan),))
    server.start(grid, num_rounds=3)
    average = FedAvg(FedAvgConfig(local), MODEL, Plan(dtype="float64"))
    simulate(average, FedAvgClient(FedAvgConfig(local), MODEL), fed, 3)
    torch.testing.assert_close(
        server.state.centers[0]["head.weight"], average.state.params["head.weight"], rtol=0, atol=1e-14
    )
