"""FedAMP against a restatement, and as local training."""

import numpy as np
import pytest

from fedpers.clients.fedamp import FedAMPConfig
from fedpers.method import LocalConfig
from tests.methods.helpers import chosen, config, doubles, network, same, simulated, smoke
from tests.mixtures import blends, federation, linear
from tests.oracles.fedamp import fedamp_round

RNG = np.random.default_rng(0)
TWO = np.array([[1.0, 0.0]] * 3 + [[0.0, 1.0]] * 3)  # three clients follow each rule
DATA = blends(TWO, RNG.normal(size=(2, 3)), [9, 12, 15, 8, 20, 6], RNG, 0.1)
FED, MODEL = federation(DATA), linear(3)


@pytest.mark.parametrize("alpha", [0.3, 4.0])  # 4: the shares of others are scaled to 1
def test_rounds_equal_a_numpy_restatement(alpha):
    cfg = FedAMPConfig(alpha, 0.4, 0.8, LocalConfig(lr=0.05, steps=4, batch_size=0))
    server, cohort = simulated("fedamp", cfg, FED, MODEL, 5, seed=1, clients_per_round=4)
    w, sent = [MODEL.init(1)["head.weight"][0].double().numpy()] * 6, set()
    for t in range(1, 6):
        w, sent = fedamp_round(w, sent, DATA, chosen(server, t), 0.05, 4, alpha, 0.4, 0.8)
    for k, state in cohort.store.states.items():
        np.testing.assert_allclose(state.w["head.weight"][0], w[k], rtol=0, atol=1e-13)
    np.testing.assert_allclose(server.state.xi.sum(1), 1, atol=1e-15)
    assert (server.state.xi >= 0).all()


def test_without_attraction_it_is_local_training_bit_for_bit():
    fed, local = doubles(), LocalConfig(lr=0.3, epochs=2, batch_size=4)
    model, plan = network(fed, "mlp"), {"seed": 5, "clients_per_round": 4}
    _, ours = simulated("fedamp", FedAMPConfig(lam=0.0, local=local), fed, model, 3, **plan)
    _, alone = simulated("local", config("local", local=local), fed, model, 3, **plan)
    for k, state in alone.store.states.items():
        assert same(ours.store.states[k].w, state.params)


def test_clients_of_one_rule_find_each_other():
    cfg = FedAMPConfig(0.01, 0.005, 0.03, LocalConfig(lr=0.1, steps=10, batch_size=0))
    server, _ = simulated("fedamp", cfg, FED, MODEL, 8)
    others = server.explain(server.state)["collaboration"] * (1 - np.eye(6))
    group = np.equal.outer(TWO[:, 0], TWO[:, 0])
    assert others[group].sum() > 5 * others[~group].sum()


@pytest.mark.parametrize("values", [{"alpha": 0.0}, {"sigma": 0.0}, {"lam": -1.0}])
def test_what_it_cannot_be(values):
    (line,) = FedAMPConfig(**values).check()
    assert line.startswith(f"{next(iter(values))}=")


def test_runs_on_digits(tmp_path):
    assert smoke("fedamp", tmp_path)["rounds"] == 3
