"""FedSoft on its synthetic mixtures, with exact local solves: what its tables show in outline."""

import itertools
from functools import cache

import numpy as np
import pytest

from fedpers.clients.fedsoft import FedSoftClient, FedSoftConfig
from fedpers.datasets.config import DataConfig
from fedpers.datasets.federation import load_federation
from fedpers.learning.model import build_model
from fedpers.method import Observer, Plan
from fedpers.simulate import simulate
from fedpers.strategies.fedsoft import FedSoft


class Weights(Observer):
    """Keeps the importance weights of every round."""

    def __init__(self, strategy):
        self.strategy, self.seen = strategy, []

    def on_round(self, t, log):
        self.seen.append(self.strategy.state.u.numpy())


@cache
def run(mixture="10:90", lam=1.0, theta_var=10.0, rounds=20):
    """(MSE [centers, sources], u a round, true shares, the clients' mean MSE on training data)."""
    server, watch, fed = trained(mixture, lam, theta_var, rounds)
    own = server.client_metrics["train_loss"].mean()
    return server.arrays()["center_metric"], np.array(watch.seen), fed.truth["membership"], own


def trained(mixture, lam, theta_var, rounds, new_clients=0, **options):
    """(strategy, what it saw, federation) after a run."""
    data = DataConfig(
        name="synthetic_fedsoft",
        partition="natural",
        num_clients=100,
        dim=10,
        num_sources=2,
        theta_var=theta_var,
        noise=1.0,
        mixture=mixture,
        holdout=1000,
    )
    fed = load_federation(data, 0)
    model = build_model(
        "linear", input_shape=(10,), num_outputs=1, task="regression", bias=False, init="xavier_normal"
    )
    cfg = FedSoftConfig(K=60, lam=lam, solver="exact", **options)
    server = FedSoft(cfg, model, Plan(eval_every=0, new_clients=new_clients))
    client = FedSoftClient(cfg, model)
    client.splits = ("train", "test")
    watch = Weights(server)
    simulate(server, client, fed, rounds, observer=watch)
    server.holdout = fed.holdout
    return server, watch, fed


def distance(u, truth):
    """Mean error of the weights, up to how the centers are numbered."""
    orders = itertools.permutations(range(truth.shape[1]))
    return min(float(np.abs(u[:, list(p)] - truth).mean()) for p in orders)


def ratio(mse):
    """The right center's MSE over the wrong one's, a source a number."""
    return mse.min(0) / mse.max(0)


@pytest.mark.parametrize("mixture", ["10:90", "linear"])
def test_each_center_takes_a_source_and_shares_are_found(mixture):
    mse, u, truth, _ = run(mixture)
    assert sorted(mse.argmin(0)) == [0, 1]
    assert (ratio(mse) <= 0.7).all()
    assert distance(u[-1], truth) <= 0.1


def test_shares_are_found_within_ten_rounds():
    _, u, truth, _ = run()
    assert distance(u[9], truth) <= 0.1


def test_near_equal_shares_leave_a_much_smaller_gap():
    assert (ratio(run("30:70")[0]) > ratio(run("10:90")[0]) + 0.2).all()


@pytest.mark.slow
def test_a_stronger_pull_costs_specialisation_and_local_fit():
    found = [run(lam=lam) for lam in (0.0, 1.0, 10.0, 100.0)]
    gaps = [float(ratio(mse).mean()) for mse, *_ in found]
    own = [f[3] for f in found]
    assert gaps == sorted(gaps) and own == sorted(own)
    apart = found[-1][0]
    np.testing.assert_allclose(apart[0], apart[1], rtol=0.25)  # the centers have collapsed


@pytest.mark.slow
def test_errors_grow_with_the_distance_of_the_sources():
    found = [run("random", theta_var=v) for v in (1.0, 10.0, 50.0, 100.0)]
    best = [float(mse.min(0).mean()) for mse, *_ in found]
    own = [f[3] for f in found]
    assert best == sorted(best) and own == sorted(own)
    assert 5 < own[-1] / own[1] < 15  # about linear in the variance


def test_new_clients_are_served_as_well_as_old_ones_by_their_best_center():
    """Clients 80 to 99 never train; the camps take turns, so both are of both."""
    server, _, _ = trained("10:90 in turn", 1.0, 10.0, 20, new_clients=20, predict="center")
    clients = server.client_metrics
    old, new = clients["test_loss"][:80].mean(), clients["new_loss"][80:].mean()
    assert new == pytest.approx(old, rel=0.1)


def test_rarer_estimations_follow_the_shares_later():
    """Appendix B: the error of u grows with τ; here its mean over the first twelve rounds."""
    errors = []
    for tau in (1, 4, 12):
        _, watch, fed = trained("10:90", 1.0, 10.0, 12, tau=tau)
        errors.append(np.mean([distance(u, fed.truth["membership"]) for u in watch.seen]))
    assert errors == sorted(errors) and errors[2] > errors[0] + 0.05
