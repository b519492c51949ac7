"""Central training against gradient descent in NumPy, FedAvg's only client, and what devices say to it."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedpers.app.privacy import check_privacy
from fedpers.clients.central import CentralClient, CentralConfig, Samples
from fedpers.clients.fedavg import FedAvgConfig
from fedpers.config import compose
from fedpers.core.data import ClientData, Data
from fedpers.core.errors import ConfigError, ReplyError
from fedpers.deploy import resident
from fedpers.learning.model import build_model
from fedpers.method import LocalConfig
from tests.deployment import test_policy
from tests.deployment.fake_link import configs
from tests.methods.helpers import doubles, network, samples, simulated, smoke

FED = doubles()
MODEL = network(FED)
LOCAL = {
    "batches": LocalConfig(lr=0.2, epochs=2, batch_size=4),
    "momentum that is kept": LocalConfig(lr=0.1, batch_size=4, momentum=0.9, keep_momentum=True),
    "rates": LocalConfig(lr=0.2, batch_size=0, schedule="cosine", horizon=4),
}


def pooled(fed, num=None):
    """All samples of the first `num` clients at one client."""
    parts = [fed.client(k) for k in range(num or fed.num_clients)]
    train = [p.train for p in parts]
    data = Data(*(torch.cat([getattr(d, f) for d in train]) for f in ("x", "y", "mask")))
    one = ClientData(data, parts[0].valid, parts[0].test)
    n, tests = np.array([len(data)]), np.array([len(one.test)])
    return replace(fed, num_clients=1, client=lambda k: one, num_train=n, num_test=tests, truth={},
                   label_counts=fed.label_counts.sum(0, keepdims=True))  # fmt: skip


def test_full_batches_are_gradient_descent_on_all_samples():
    cfg = CentralConfig(LocalConfig(lr=0.3, epochs=2, batch_size=0))
    server, cohort = simulated("central", cfg, FED, MODEL, 3, seed=5, clients_per_round=2)
    start = {k: v.double().numpy() for k, v in MODEL.init(5).items()}
    x, y = (np.concatenate(part) for part in zip(*samples(FED), strict=True))
    w, b = start["head.weight"], start["head.bias"]
    for _ in range(3 * 2):
        p = np.exp(x @ w.T + b)
        error = (p / p.sum(1, keepdims=True) - np.eye(3)[y]) / len(y)
        w, b = w - 0.3 * error.T @ x, b - 0.3 * error.sum(0)
    np.testing.assert_allclose(server.state.params["head.weight"].numpy(), w, rtol=0, atol=1e-13)
    np.testing.assert_allclose(server.state.params["head.bias"].numpy(), b, rtol=0, atol=1e-13)
    assert not cohort.store.states


def assert_alike(server, other):
    """But for FedAvg's mean of one, n w / n."""
    for k, v in other.state.params.items():
        np.testing.assert_allclose(server.state.params[k].numpy(), v.numpy(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", LOCAL)
def test_it_is_fedavg_with_one_client_that_has_all_samples(name):
    server, _ = simulated("central", CentralConfig(LOCAL[name]), FED, MODEL, 3, seed=2)
    other, _ = simulated("fedavg", FedAvgConfig(LOCAL[name]), pooled(FED), MODEL, 3, seed=2)
    assert_alike(server, other)


def test_modules_with_dropout_and_batchnorm_train_as_at_that_client():
    model = build_model("module", input_shape=(5,), num_outputs=3, task="classification",
                        path="tests.methods.test_central:Net")  # fmt: skip
    cfg = LocalConfig(lr=0.1, epochs=2, batch_size=4)
    server, _ = simulated("central", CentralConfig(cfg), FED, model, 2, seed=2)
    other, _ = simulated("fedavg", FedAvgConfig(cfg), pooled(FED), model, 2, seed=2)
    assert_alike(server, other)


class Net(torch.nn.Sequential):
    """Draws in training, and has no use for padding."""

    def __init__(self):
        super().__init__(torch.nn.Linear(5, 6), torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.3),
                         torch.nn.Linear(6, 3))  # fmt: skip


def test_samples_are_sent_once_and_the_server_pays_for_the_training():
    cfg = CentralConfig(LocalConfig(lr=0.1, epochs=3, batch_size=4))
    costs = []
    for rounds in (1, 2):
        server, _ = simulated("central", cfg, FED, MODEL, rounds)
        log = server.round_log
        costs.append((log.bytes_up, log.gradient_evals, log.body_forwards))
    n = int(FED.num_train.sum())
    assert costs == [(n * (5 + 1 + 1) * 8, 3 * n, 3 * n), (0, 3 * n, 3 * n)]


def test_new_clients_keep_their_samples():
    cfg = CentralConfig(LocalConfig(lr=0.2, batch_size=0))
    server, _ = simulated("central", cfg, FED, MODEL, 2, seed=2, new_clients=2)
    other, _ = simulated("fedavg", FedAvgConfig(cfg.local), pooled(FED, 4), MODEL, 2, seed=2)
    assert_alike(server, other)


@pytest.mark.parametrize(("size", "dim"), [(5, 5), (9, 4)])
def test_samples_of_another_number_or_width_are_refused_by_the_clients_name(size, dim, monkeypatch):
    whole = CentralClient.answer

    def answer(self, order, state, data, rng):
        reply, kept = whole(self, order, state, data, rng)
        if order.n != 9:
            return reply, kept
        return Samples(reply.x[:size, :dim], reply.y[:size], reply.mask[:size]), kept

    monkeypatch.setattr(CentralClient, "answer", answer)
    with pytest.raises(ReplyError, match=r"client 1 failed in round 1: .* has shape"):
        simulated("central", CentralConfig(), FED, MODEL, 1)


def test_devices_refuse_it_whatever_their_policy_allows(tmp_path):
    _, cfg = configs("central", 1)
    with pytest.raises(ConfigError, match="method=central: refused on devices, it would send the samples"):
        check_privacy(cfg)
    order = test_policy.Order("0" * 32, -1, test_policy.Recall(None, None), 9.0).header()
    (tmp_path / "policy.toml").write_text('methods = ["central"]')
    np.savez(tmp_path / "site.npz", x=np.zeros((4, 64)), y=np.arange(4) % 2)
    files = {"data": "site.npz", "state": "state", "policy": "policy.toml"}
    node = {key: str(tmp_path / file) for key, file in files.items()}
    header = {"kind": "query", "t": 0, "e": 0, "skeleton": "{}", **order}
    text = json.dumps(test_policy.to_mapping(cfg))
    with pytest.raises(ConfigError, match="method=central: refused on devices"):
        resident.answer({"header": header, "node": node, "config": text}, [])


def test_what_has_no_meaning_is_refused(tmp_path):
    for key, why in (("eval_protocol=participants_local", "no client trains"),
                     ("participation=bernoulli", "trains on the samples of all clients")):  # fmt: skip
        with pytest.raises(ConfigError, match=why):
            smoke("central", tmp_path / key, key, "clients_per_round=3")
    with pytest.raises(ConfigError, match="privacy=dp method=central: method=central sends the samples"):
        check_privacy(compose.load(["method=central", "privacy=dp"]))


def test_it_is_above_fedavg_on_digits(tmp_path):
    shared = ["rounds=5", "data.num_clients=10"]
    loss = {m: smoke(m, tmp_path / m, *shared)["final"]["loss"] for m in ("central", "fedavg")}
    assert loss["central"] < loss["fedavg"]
