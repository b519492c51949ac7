"""FedProto against a restatement, and as local training."""

import numpy as np
import pytest

from fedpers.clients.fedproto import FedProtoConfig
from fedpers.core.errors import ConfigError
from fedpers.core.pytree import record_name
from fedpers.families.prototypes import ClientState
from fedpers.method import LocalConfig, split
from tests.methods.helpers import (
    assert_close,
    chosen,
    config,
    doubles,
    initial_parts,
    network,
    regression,
    same,
    samples,
    simulated,
    smoke,
)
from tests.oracles.fedproto import fedproto_round

FED = doubles(classes=5)
MODEL = network(FED, "mlp")


def test_rounds_equal_a_numpy_restatement():
    """Two clients a round: some classes are first seen late, some missing in a round."""
    cfg = FedProtoConfig(0.9, LocalConfig(lr=0.2, epochs=3, batch_size=0))
    server, cohort = simulated("fedproto", cfg, FED, MODEL, 5, seed=1, clients_per_round=2)
    models, prototypes = [initial_parts(MODEL, 1)] * 6, {}
    for t in range(1, 6):
        now = chosen(server, t)
        models, prototypes = fedproto_round(models, prototypes, samples(FED), now, 0.2, 3, 0.9)
    for i, state in cohort.store.states.items():
        head, body = split(state.params, MODEL.is_head)
        assert_close(body, models[i][0])
        assert_close(head, models[i][1])
    assert set(np.flatnonzero(server.state.n)) == set(prototypes)
    for label, vector in prototypes.items():
        np.testing.assert_allclose(server.state.C[label], vector, rtol=0, atol=1e-13)


def test_without_a_pull_it_is_local_training_bit_for_bit():
    local, plan = LocalConfig(lr=0.3, epochs=2, batch_size=4), {"seed": 5, "clients_per_round": 4}
    _, ours = simulated("fedproto", FedProtoConfig(0.0, local), FED, MODEL, 3, **plan)
    _, alone = simulated("local", config("local", local=local), FED, MODEL, 3, **plan)
    for k, state in alone.store.states.items():
        assert same(ours.store.states[k].params, state.params)


def test_a_class_that_nobody_drawn_has_keeps_its_prototype():
    """Clients 0 and 2 alone, in turn; a label that only one of them has stays."""
    one, other = (set(np.flatnonzero(FED.label_counts[k])) for k in (0, 2))
    assert one - other or other - one
    cfg = FedProtoConfig(1.0, LocalConfig(lr=0.2, batch_size=0))
    server, _ = simulated("fedproto", cfg, FED, MODEL, 6, seed=1, clients_per_round=1)
    seen = {k for t in range(1, 7) for k in chosen(server, t)}
    labels = {label for k in seen for label in np.flatnonzero(FED.label_counts[k])}
    assert set(np.flatnonzero(server.state.n)) == labels


def test_a_strong_pull_brings_features_of_a_class_together():
    spread = []
    for lam in (0.0, 20.0):
        local = LocalConfig(lr=0.02, epochs=10, batch_size=0)
        _, cohort = simulated("fedproto", FedProtoConfig(lam, local), FED, MODEL, 8)
        parts = [(FED.client(k).train, cohort.store.states[k].params) for k in range(6)]
        z = np.concatenate([MODEL.body(w, d.x).numpy() for d, w in parts])
        y = np.concatenate([d.y.numpy() for d, _ in parts])
        spread.append(np.mean([z[y == c].var(0).sum() for c in range(5)]))
    assert spread[1] < 0.6 * spread[0]


def test_data_without_classes_are_refused():
    fed = regression([np.ones((3, 2))] * 2, [np.ones((3, 1))] * 2)
    with pytest.raises(ConfigError, match="method fedproto shares a prototype of each class"):
        simulated("fedproto", FedProtoConfig(), fed, network(fed, "linear"), 1)


def test_runs_on_digits(tmp_path):
    assert smoke("fedproto", tmp_path)["rounds"] == 3


def test_a_state_has_the_name_that_it_has_in_older_checkpoints():
    assert record_name(ClientState) == "fedproto.ClientState"
