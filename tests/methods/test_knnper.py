"""kNN-Per against a restatement, as FedAvg, and as nearest neighbours."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedpers.clients import knnper
from fedpers.clients.knnper import KNNPerClient, KNNPerConfig
from fedpers.core.data import ClientData, Data
from fedpers.core.errors import ConfigError
from fedpers.families.global_model.client import Weights
from fedpers.method import LocalConfig, Stream, split
from tests.methods.helpers import (
    assert_close,
    chosen,
    config,
    doubles,
    initial_parts,
    network,
    quadratics,
    same,
    samples,
    simulated,
    smoke,
)
from tests.oracles.knnper import fedavg_round, predict

FED = doubles(sizes=(1, 9, 14, 5, 21, 12))
MODEL = network(FED, "mlp")
LOCAL = LocalConfig(lr=0.3, epochs=2, batch_size=0)


@pytest.mark.parametrize("lam", [None, 0.3])
def test_rounds_and_predictions_equal_a_numpy_restatement(lam):
    """Three of six clients a round; one has a single sample, three fewer than k + 1."""
    cfg = KNNPerConfig(12, lam, 0.7, LOCAL)
    server, _ = simulated("knnper", cfg, FED, MODEL, 5, seed=1, clients_per_round=3)
    (body, head), data, found = initial_parts(MODEL, 1), samples(FED), []
    for t in range(1, 6):
        body, head = fedavg_round(body, head, data, chosen(server, t), 0.3, 2)
    phi, theta = split(server.state.params, MODEL.is_head)
    assert_close(theta, body)
    assert_close(phi, head)
    for m in range(6):
        test = FED.client(m).test
        p, used = predict(body, head, data[m], test.x.numpy(), 12, 0.7, lam)
        y = test.y.numpy()
        loss = -np.log(p[np.arange(len(y)), y]).mean()
        assert server.client_metrics["test_loss"][m] == pytest.approx(loss, rel=1e-10)
        assert server.client_metrics["test_accuracy"][m] == pytest.approx((p.argmax(1) == y).mean())
        found.append(used)
    assert found[0] == (lam or 0)  # nothing is known of a single sample's neighbours
    assert lam is not None or len(set(found)) > 2


def test_without_neighbours_it_is_fedavg_bit_for_bit():
    plan = {"seed": 5, "clients_per_round": 4}
    ours, _ = simulated("knnper", KNNPerConfig(lam=0.0, local=LOCAL), FED, MODEL, 3, **plan)
    theirs, _ = simulated("fedavg", config("fedavg", local=LOCAL), FED, MODEL, 3, **plan)
    assert same(ours.state.params, theirs.state.params)
    for name in ("test_loss", "test_accuracy"):
        before = ours.client_metrics[f"{name}_before"]
        np.testing.assert_array_equal(before, theirs.client_metrics[name])
        np.testing.assert_allclose(ours.client_metrics[name], before, rtol=1e-12)


def test_one_neighbour_alone_recalls_every_sample_that_it_was_shown():
    _, cohort = simulated("knnper", KNNPerConfig(1, 1.0, local=LOCAL), FED, MODEL, 1)
    client, data = cohort.client, FED.client(4).train
    start = {k: v.double() for k, v in MODEL.init(0).items()}
    shared, _ = client.adapt(Weights(start), None, data, Stream(0, 1, 4))
    assert torch.equal(client.predict(shared, None, data.x).argmax(1), data.y)


@pytest.mark.parametrize("rows", [1, 4])
def test_samples_looked_up_in_parts_have_the_same_neighbours(rows, monkeypatch):
    client, data = KNNPerClient(KNNPerConfig(3), MODEL), FED.client(4).train
    start = Weights({k: v.double() for k, v in MODEL.init(0).items()})
    whole, _ = client.adapt(start, None, data, Stream(0, 1, 4))
    outputs = client.predict(whole, None, data.x)
    monkeypatch.setattr(knnper, "ROWS", rows)
    parts, _ = client.adapt(start, None, data, Stream(0, 1, 4))
    assert torch.equal(whole.lam, parts.lam)
    torch.testing.assert_close(client.predict(parts, None, data.x), outputs, rtol=0, atol=1e-13)


def test_the_nearest_of_many_samples_far_from_0_is_found():
    """Thirty features 1/8 apart and 1000 from 0, where squares in float32 lose what is between them."""
    z = torch.full((30, 8), 1000.25)
    z[:, 0] += torch.arange(30) / 8
    known = knnper.Neighbours(None, KNNPerConfig(k=1), z, torch.eye(30), torch.ones(30))
    assert torch.equal(known.votes(z + 1 / 32), torch.eye(30))


def test_padding_is_nobodys_neighbour():
    """Two samples and three rows of padding that lie nearer, of another class."""
    x = torch.tensor([[3.0] * 5, [4.0] * 5, [0.0] * 5, [0.0] * 5, [0.0] * 5], dtype=torch.float64)
    mask = torch.tensor([1.0, 1, 0, 0, 0], dtype=torch.float64)
    known = Data(x, torch.tensor([1, 1, 2, 2, 2]), mask)
    client = KNNPerClient(KNNPerConfig(4, 1.0), network(FED))
    start = Weights({k: v.double() for k, v in network(FED).init(0).items()})
    shared, _ = client.adapt(start, None, known, Stream(0, 1, 0))
    p = client.predict(shared, None, x[2:3]).exp()[0]
    torch.testing.assert_close(p, p.new_tensor([0, 1, 0]), rtol=0, atol=1e-12)


def test_neighbours_serve_a_client_whose_labels_are_turned_round():
    """Two clients of six call one class by the other's name; FedAvg serves the majority."""

    def turned(k):
        rng = np.random.default_rng(k)
        y = np.arange(40) % 2
        x = torch.from_numpy(rng.normal(size=(40, 5)) + 3 * y[:, None])
        part = Data(x, torch.from_numpy(y if k > 1 else 1 - y), torch.ones(40, dtype=torch.float64))
        return ClientData(part, part, part)

    fed = replace(doubles(classes=2), client=turned, num_train=np.full(6, 40))
    server, _ = simulated("knnper", KNNPerConfig(local=LocalConfig(lr=0.1)), fed, network(fed), 5)
    before, after = (server.client_metrics[f"test_accuracy{end}"][:2] for end in ("_before", ""))
    assert (before < 0.2).all() and (after > 0.9).all()


def test_binary_tasks_are_taken_and_regressions_refused():
    fed = doubles(task="binary")
    server, _ = simulated("knnper", KNNPerConfig(3, local=LOCAL), fed, network(fed), 2)
    assert np.isfinite(server.client_metrics["test_loss"]).all()
    fed = quadratics([1.0, 2.0], [3.0, 4.0], [3, 5])
    with pytest.raises(ConfigError, match="method knnper mixes probabilities of classes"):
        simulated("knnper", KNNPerConfig(), fed, network(fed, "linear"), 1)


def test_binary_predictions_are_the_log_odds_of_the_mixture():
    fed = doubles(task="binary")
    model, data = network(fed), fed.client(0).train
    start = {k: v.double() for k, v in model.init(0).items()}
    client = KNNPerClient(KNNPerConfig(3, 0.4), model)
    shared, _ = client.adapt(Weights(start), None, data, Stream(0, 1, 0))
    x = fed.client(0).test.x
    far = (x[:, None] - data.x).square().sum(2).sqrt()
    near, who = far.sort(1)
    w = (-near[:, :3]).exp()
    yes = (w * data.y[who[:, :3]]).sum(1) / w.sum(1)
    p = 0.4 * yes + 0.6 * torch.sigmoid(model(start, x)[:, 0])
    torch.testing.assert_close(torch.sigmoid(client.predict(shared, None, x)[:, 0]), p, rtol=0, atol=1e-12)


@pytest.mark.parametrize("values", [{"k": 0}, {"lam": -0.1}, {"lam": 1.1}, {"sigma": 0.0}])
def test_what_it_cannot_be(values):
    (line,) = KNNPerConfig(**values).check()
    assert line.startswith(f"{next(iter(values))}=")


def test_new_clients_train_the_model_that_their_neighbours_are_looked_up_by(tmp_path):
    words = ["data.num_clients=6", "new_clients=2", "new_epochs=2", "method.k=3"]
    assert smoke("knnper", tmp_path, *words)["rounds"] == 3


def test_runs_on_digits(tmp_path):
    assert smoke("knnper", tmp_path)["rounds"] == 3
