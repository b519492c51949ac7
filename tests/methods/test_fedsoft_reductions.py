"""What FedSoft becomes in special cases: FedProx, FedAvg, local training, IFCA."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedpers.checks.toy_data import toy_federation
from fedpers.clients.fedavg import FedAvgClient, FedAvgConfig
from fedpers.clients.fedprox import FedProxClient, FedProxConfig
from fedpers.clients.fedsoft import ClientState, FedSoftClient, FedSoftConfig, Train
from fedpers.clients.ifca import IFCAClient, IFCAConfig
from fedpers.clients.local import LocalClient, LocalTrainingConfig
from fedpers.engines.cohort import Cohort
from fedpers.engines.inprocess_grid import InProcessGrid
from fedpers.engines.memory.client_store import RamStore
from fedpers.learning.model import build_model, initial_params
from fedpers.method import LocalConfig, Plan, Stream
from fedpers.simulate import simulate
from fedpers.strategies.fedavg import FedAvg
from fedpers.strategies.fedprox import FedProx
from fedpers.strategies.fedsoft import FedSoft
from fedpers.strategies.ifca import IFCA
from fedpers.strategies.local import Local
from tests.mixtures import blends, federation, keep_importance, linear

LOCAL = LocalConfig(lr=0.1, epochs=2, batch_size=4)
CENTER = {"local_init": "center_mix", "optimizer_state": "reset", "local": LOCAL}
ONES = np.ones((6, 1))
DOUBLE = Plan(seed=4, dtype="float64")
FED = toy_federation(dtype=torch.float64)
MODEL = build_model("mlp", input_shape=(5,), num_outputs=3, task="classification", hidden=[4])


def fedsoft(cfg, rounds, plan=DOUBLE, fed=FED, model=MODEL, u=None, centers=None):
    """(strategy, cohort) of a run from the given state."""
    server = FedSoft(cfg, model, plan)
    cohort = Cohort(FedSoftClient(cfg, model), fed, RamStore(), plan)
    grid = InProcessGrid(cohort)
    server.connect(grid)
    if u is not None:
        keep_importance(server, u)
    server.state = replace(server.state, centers=centers or (initial_params(model, plan),))
    server.start(grid, num_rounds=rounds)
    return server, cohort


def assert_equal(a, b, atol=0.0):
    for k in a:
        torch.testing.assert_close(a[k], b[k], rtol=0, atol=atol)


@pytest.mark.parametrize("u", [ONES, None], ids=["given", "estimated"])
@pytest.mark.parametrize("batch_size", [0, 4])
def test_one_cluster_without_pull_is_fedavg_bit_for_bit(u, batch_size):
    """Also in minibatches, unless an estimation comes first in the round: streams are by exchange."""
    local = replace(LOCAL, batch_size=batch_size)
    cfg = FedSoftConfig(S=1, lam=0.0, sampling="full", **(CENTER | {"local": local}))
    soft, _ = fedsoft(cfg, 3, u=u)
    average = FedAvg(FedAvgConfig(local), MODEL, DOUBLE)
    simulate(average, FedAvgClient(FedAvgConfig(local), MODEL), FED, 3)
    same = all(torch.equal(soft.state.centers[0][k], v) for k, v in average.state.params.items())
    assert same == (u is ONES or batch_size == 0)


def test_one_cluster_is_fedprox():
    cfg = FedSoftConfig(S=1, lam=0.7, sampling="full", **CENTER)
    soft, _ = fedsoft(cfg, 3, u=ONES)
    prox = FedProx(FedProxConfig(mu=0.7, local=LOCAL), MODEL, DOUBLE)
    simulate(prox, FedProxClient(FedProxConfig(mu=0.7, local=LOCAL), MODEL), FED, 3)
    assert_equal(soft.state.centers[0], prox.state.params, atol=1e-13)


def test_one_sampled_cluster_is_fedprox_as_its_paper_samples():
    cfg = FedSoftConfig(S=1, K=3, lam=0.7, **CENTER)
    soft, _ = fedsoft(cfg, 4, u=ONES)
    plan = replace(DOUBLE, clients_per_round=3)
    config = FedProxConfig(mu=0.7, sampling="proportional", local=LOCAL)
    prox = FedProx(config, MODEL, plan)
    simulate(prox, FedProxClient(config, MODEL), FED, 4)
    assert_equal(soft.state.centers[0], prox.state.params, atol=1e-13)


def test_no_pull_from_the_own_model_is_local_training():
    cfg = FedSoftConfig(S=1, lam=0.0, sampling="full", optimizer_state="reset", local=LOCAL)
    _, soft = fedsoft(cfg, 3, u=ONES)
    config = LocalTrainingConfig(LOCAL)
    alone = simulate(Local(config, MODEL, DOUBLE), LocalClient(config, MODEL), FED, 3)
    for k in range(6):
        for name, value in alone.store.states[k].params.items():
            assert torch.equal(soft.store.states[k].w[name], value)


def test_without_pull_clients_ignore_the_centers():
    client = FedSoftClient(FedSoftConfig(lam=0.0, local=LOCAL), MODEL)
    memory = ClientState(initial_params(MODEL, DOUBLE), None)
    data, u = FED.client(0).train, torch.tensor([0.2, 0.8]).double()
    with torch.no_grad():
        found = [
            client.answer(
                Train(tuple({k: v.double() for k, v in MODEL.init(s).items()} for s in seeds), u),
                memory,
                data,
                Stream(0, 1, 0),
            )[0].w
            for seeds in ((1, 2), (3, 4))
        ]
    for k in found[0]:
        assert torch.equal(found[0][k], found[1][k])


@pytest.mark.parametrize(("sizes", "weighting"), [((12,), "uniform"), ((8, 12, 20), "samples")])
def test_one_source_a_client_is_ifca(sizes, weighting):
    """One-hot weights given as IFCA chooses them; equal sizes, or IFCA weighed by samples."""
    rng = np.random.default_rng(0)
    theta = np.array([[2.0, 0.0, 1.0], [-2.0, 1.0, 0.0]])
    U = np.eye(2)[[0, 1, 0, 1, 0, 1]]
    fed = federation(blends(U, theta, [sizes[k % len(sizes)] for k in range(6)], rng, 0.1))
    model = linear(3)
    local = replace(LOCAL, lr=0.02)
    hard = IFCA(IFCAConfig(weighting=weighting, local=local), model, DOUBLE)
    cohort = Cohort(IFCAClient(hard.config, model), fed, RamStore(), DOUBLE)
    grid = InProcessGrid(cohort)
    hard.connect(grid)
    centers = tuple({"head.weight": torch.tensor(t + 0.5)[None].double()} for t in theta)
    hard.state = replace(hard.state, centers=centers)
    hard.start(grid, num_rounds=4)
    assert torch.equal(hard.state.identity, torch.tensor(U))
    cfg = FedSoftConfig(sigma=0.0, lam=0.0, sampling="full", **(CENTER | {"local": local}))
    soft, _ = fedsoft(cfg, 4, fed=fed, model=model, u=U, centers=centers)
    for a, b in zip(soft.state.centers, hard.state.centers, strict=True):
        assert_equal(a, b, atol=1e-14)
