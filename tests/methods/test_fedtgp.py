"""FedTGP against a restatement, its margin, and as FedProto without a pull."""

import numpy as np
import pytest
import torch

from fedpers.clients.fedproto import FedProtoConfig
from fedpers.clients.fedtgp import FedTGPConfig
from fedpers.core.errors import ConfigError
from fedpers.core.rng import server_rng
from fedpers.method import LocalConfig, Plan, Roster
from fedpers.strategies.fedtgp import FedTGP, made, margin
from tests.methods.helpers import (
    assert_close,
    doubles,
    initial_parts,
    network,
    quadratics,
    same,
    samples,
    simulated,
    smoke,
)
from tests.oracles.fedproto import train
from tests.oracles.fedtgp import prototype, server
from tests.oracles.pflego import features

FED = doubles(classes=5)
MODEL = network(FED, "mlp")
FULL = LocalConfig(lr=0.2, epochs=2, batch_size=0)
ORDER = ("vectors", "inner.weight", "inner.bias", "outer.weight", "outer.bias")


def start(seed):
    """The server's first parameters, as the restatement has them."""
    strategy = FedTGP(FedTGPConfig(), MODEL, Plan(seed=seed, dtype="float64"))
    params = {k: v.double() for k, v in MODEL.init(seed).items()}
    maker = strategy.init(Roster((), torch.zeros(0), {}), params, np.random.default_rng([seed, 0, 0])).maker
    return [maker[name] for name in ORDER]


@pytest.mark.parametrize("tau", [0.02, 100.0])
def test_rounds_equal_a_restatement(tau):
    """Three of six unequal clients a round, some of whom lack classes."""
    assert (FED.label_counts == 0).any()
    cfg, plan = FedTGPConfig(0.8, tau, 0.05, 3, 4, FULL), {"seed": 1, "clients_per_round": 3}
    strategy, cohort = simulated("fedtgp", cfg, FED, MODEL, 3, **plan)
    p, models, prototypes = start(1), [initial_parts(MODEL, 1)] * 6, {}
    for t in range(1, 4):
        rng, sent = server_rng(1, t), []
        for i in strategy.sample(rng):
            x, y = samples(FED)[i]
            models[i] = train(*models[i], x, y, prototypes, 0.2, 2, 0.8)
            z = features(models[i][0], x)
            sent += [(c, torch.from_numpy(z[y == c].mean(0))) for c in sorted(set(y.tolist()))]
        p, delta = server(p, sent, tau, 0.05, 3, 4, rng)
        prototypes = {c: prototype(p, c).numpy() for c in range(5)}
    assert strategy.round_log.extra["margin"] == pytest.approx(delta, rel=1e-9)
    for name, value in zip(ORDER, p, strict=True):
        torch.testing.assert_close(strategy.state.maker[name], value, rtol=0, atol=1e-12)
    for i, state in cohort.store.states.items():
        assert_close({k: v for k, v in state.params.items() if not MODEL.is_head(k)}, models[i][0], 1e-12)


def test_the_margin_is_the_widest_of_the_nearest_ways_and_no_more_than_tau():
    C = torch.tensor([[0.0, 0.0], [0.0, 2.0], [3.0, 1.0], [10.0, 1.0]])
    c = torch.tensor([0, 0, 1, 2])  # means (0, 1), (3, 1), (10, 1): nearest ways 3, 3, 7
    assert margin(C, c, 100.0) == pytest.approx(7.0)
    assert margin(C, c, 5.0) == 5.0
    assert margin(C[:2], c[:2], 5.0) == 0.0


def test_the_margin_of_many_classes_far_from_0_is_exact():
    """Thirty on a line, 1/8 apart and 1000 from 0, where squares in float32 lose what is between them."""
    C = torch.full((30, 8), 1000.25)
    C[:, 0] += torch.arange(30) / 8
    assert margin(C, torch.arange(30), 100.0) == 0.125


def test_trained_prototypes_lie_further_apart_than_the_first():
    cfg = FedTGPConfig(server_lr=0.1, server_epochs=50, local=FULL)
    strategy, _ = simulated("fedtgp", cfg, FED, MODEL, 2, seed=3)
    first = dict(zip(ORDER, start(3), strict=True))
    nearest = [torch.pdist(made(w)).min() for w in (first, strategy.state.maker)]
    assert nearest[1] > 2 * nearest[0]


def test_without_a_pull_clients_are_those_of_fedproto():
    _, ours = simulated("fedtgp", FedTGPConfig(0.0, local=FULL), FED, MODEL, 3, seed=2)
    _, other = simulated("fedproto", FedProtoConfig(0.0, FULL), FED, MODEL, 3, seed=2)
    for i, state in ours.store.states.items():
        assert same(state.params, other.store.states[i].params)


def test_data_without_classes_and_bad_values_are_refused():
    fed = quadratics([1.0, 2.0], [3.0, 4.0], [3, 5])
    with pytest.raises(ConfigError, match="method fedtgp shares a prototype of each class"):
        simulated("fedtgp", FedTGPConfig(), fed, network(fed, "linear"), 1)
    assert len(FedTGPConfig(-1.0, -1.0, 0.0, 0, 0).check()) == 5


def test_runs_on_digits(tmp_path):
    assert smoke("fedtgp", tmp_path)["rounds"] == 3
