"""FedPAC against a restatement, its weights of heads against their conditions, and as FedRep."""

import numpy as np
import pytest

from fedpers.clients.fedpac import FedPACConfig
from fedpers.clients.fedrep import FedRepConfig
from fedpers.core.errors import ConfigError
from fedpers.method import LocalConfig
from fedpers.strategies.fedpac import combination
from tests.methods.helpers import (
    arrays,
    assert_close,
    chosen,
    doubles,
    initial_parts,
    network,
    quadratics,
    samples,
    simulated,
    smoke,
)
from tests.oracles.fedpac import fedpac_round

FED = doubles(classes=5)
MODEL = network(FED, "mlp")


def test_rounds_equal_a_numpy_restatement():
    """Three of six unequal clients a round: classes first seen late, and missing in a round."""
    head, body = LocalConfig(lr=0.3, epochs=2, batch_size=0), LocalConfig(lr=0.2, epochs=3, batch_size=0)
    plan = {"seed": 1, "clients_per_round": 3}
    server, cohort = simulated("fedpac", FedPACConfig(0.9, head, body), FED, MODEL, 4, **plan)
    theta, start = initial_parts(MODEL, 1)
    heads, prototypes = [start] * 6, {}
    for t in range(1, 5):
        now = chosen(server, t)
        theta, heads, prototypes = fedpac_round(
            theta, heads, prototypes, samples(FED), now, 5, (0.3, 0.2), (2, 3), 0.9
        )
    assert_close(server.state.part, theta, 1e-10)
    assert not cohort.store.states
    for k in range(6):
        shared = server.evaluation_message(server.state, k)
        assert_close(shared.head, heads[k], 1e-9)
        whole = cohort.client.personal(shared, None)
        assert_close({n: v for n, v in whole.items() if not MODEL.is_head(n)}, theta, 1e-10)
    assert set(np.flatnonzero(server.state.prototypes.n)) == set(prototypes)
    for label, vector in prototypes.items():
        np.testing.assert_allclose(server.state.prototypes.C[label], vector, rtol=0, atol=1e-10)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_weights_are_least_on_the_simplex(scale):
    """Where a weight is above 0 the slope 2Pα is the multiplier, and elsewhere no less."""
    rng = np.random.default_rng(0)
    for r in (1, 2, 5, 20):
        H, V = rng.normal(size=(r, 12)) * scale**0.5, rng.uniform(0.1, 3, r) * scale
        i = int(rng.integers(r))
        alpha = combination(i, H, V)
        assert (alpha >= 0).all() and alpha.sum() == pytest.approx(1, abs=1e-12)
        slope = (np.diag(V) + (H - H[i]) @ (H - H[i]).T) @ alpha
        least = alpha @ slope
        np.testing.assert_allclose(slope[alpha > 1e-9], least, rtol=1e-6)
        assert (slope >= least * (1 - 1e-6)).all()


def test_clients_whose_features_are_alike_are_weighed_by_their_variances():
    V = np.array([1.0, 2.0, 4.0])
    np.testing.assert_allclose(combination(0, np.ones((3, 4)), V), (1 / V) / (1 / V).sum(), atol=1e-9)
    far = np.array([[0.0], [1e4], [1e-4]])
    alpha = combination(0, far, np.array([1.0, 1.0, 1.0]))
    np.testing.assert_allclose(alpha, [0.5, 0, 0.5], atol=1e-6)
    np.testing.assert_array_equal(combination(1, np.ones((3, 4)), np.zeros(3)), [0, 1, 0])


def test_without_a_pull_and_one_client_a_round_it_is_fedrep():
    local, plan = LocalConfig(lr=0.3, epochs=2, batch_size=4), {"seed": 5, "clients_per_round": 1}
    ours, _ = simulated("fedpac", FedPACConfig(0.0, local, local), FED, MODEL, 5, **plan)
    rep = FedRepConfig(head=local, body=local, head_init="common")
    other, cohort = simulated("fedrep", rep, FED, MODEL, 5, **plan)
    assert_close(ours.state.part, arrays(other.state.part), 1e-12)
    assert set(ours.state.heads) == set(cohort.store.states)
    for k, head in ours.state.heads.items():
        assert_close(head, arrays(cohort.store.states[k].own), 1e-12)


def test_a_client_that_was_never_drawn_has_the_initial_head():
    cfg = FedPACConfig(1.0, LocalConfig(lr=0.2, batch_size=0), LocalConfig(lr=0.2, batch_size=0))
    server, _ = simulated("fedpac", cfg, FED, MODEL, 1, seed=1, clients_per_round=2, new_clients=1)
    (_, start), drawn = initial_parts(MODEL, 1), chosen(server, 1)
    for k in range(6):
        head = arrays(server.evaluation_message(server.state, k).head)
        assert all(np.array_equal(v, start[n]) for n, v in head.items()) == (k not in drawn)


def test_data_without_classes_and_negative_pulls_are_refused():
    fed = quadratics([1.0, 2.0], [3.0, 4.0], [3, 5])
    with pytest.raises(ConfigError, match="method fedpac shares a prototype of each class"):
        simulated("fedpac", FedPACConfig(), fed, network(fed, "linear"), 1)
    assert FedPACConfig(lam=-1.0).check() == ["lam=-1: must be at least 0"]


def test_runs_on_digits(tmp_path):
    assert smoke("fedpac", tmp_path)["rounds"] == 3
