"""L2SGD+ against plain loops, and where it goes (float64)."""

import numpy as np
import pytest
import torch

from fedpers.clients.l2sgd import L2SGDClient, L2SGDConfig
from fedpers.core.plan import Plan
from fedpers.core.rng import Stream
from fedpers.engines.cohort import Cohort
from fedpers.engines.inprocess_grid import InProcessGrid
from fedpers.engines.memory.client_store import RamStore
from fedpers.families.unified.config import ObjectiveConfig
from fedpers.families.unified.objectives import make_objective
from fedpers.families.unified.optimum import solve
from fedpers.strategies.l2sgd import L2SGD
from tests.oracles.l2sgd import run as oracle
from tests.unified import Script, W, flat, linear_model, logistic, ridge


def run(fed, upto, monkeypatch=None, coins=None, **options):
    """(strategy, cohort) after some rounds; `coins` are those of each round."""
    cfg = L2SGDConfig(**{"report": False, **options})
    assert cfg.check() == []
    model, plan = linear_model(fed), Plan(dtype="float64", eval_every=0)
    strategy, client = L2SGD(cfg, model, plan), L2SGDClient(cfg, model)
    cohort = Cohort(client, fed, RamStore(), plan)
    grid = InProcessGrid(cohort)
    strategy.evaluates = lambda t: False
    for t in range(1, upto + 1):
        if coins:
            monkeypatch.setattr("fedpers.flower.strategy.server_rng", lambda *key, t=t: Script(coins[t - 1]))
        strategy.start(grid, num_rounds=t)
    return strategy, cohort


@pytest.mark.parametrize("make", [ridge, logistic])
def test_trajectory_is_the_oracles(make, monkeypatch):
    fed, n = make(M=3, n=5), 5
    lengths = [3, 0, 2, 0, 4]
    coins = [[1.0] * T + [0.0] for T in lengths]
    options = {"lam": 0.7, "eta": 0.05, "p": 0.3}
    strategy, cohort = run(fed, 5, monkeypatch, coins, **options)
    steps = []
    for t, T in enumerate(lengths, 1):
        drawn = [(Stream(0, t, m, 0).uniform(T).double() * n).long().tolist() for m in range(3)]
        steps += [list(js) for js in zip(*drawn, strict=True)] + [None]
    parts = [fed.client(m).train for m in range(3)]
    xs, ys = [p.x.numpy() for p in parts], [p.y.numpy().astype(float) for p in parts]
    found = np.stack([flat(cohort.state(m, (99, 0)).x) for m in range(3)])
    np.testing.assert_allclose(found, oracle(xs, ys, fed.task, **options, steps=steps), atol=1e-13)
    assert strategy.state.communications == 5 and strategy.state.iterations == 9 + 5


@pytest.mark.slow
def test_it_reaches_the_optimum_of_the_mixture():
    fed = ridge(M=3, n=4, d=2)
    f = make_objective(ObjectiveConfig(objective="mx2", lam=0.7), linear_model(fed), 3)
    parts = [fed.client(m).train for m in range(3)]
    best = solve(f, parts, {W: torch.zeros(1, 2).double()})
    _, cohort = run(fed, 500, lam=0.7, eta=0.05, p=0.3)
    for m in range(3):
        found = flat(cohort.state(m, (9999, 0)).x)
        np.testing.assert_allclose(found, flat(best.betas[m]), atol=1e-4)
