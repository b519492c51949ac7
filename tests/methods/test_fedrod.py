"""FedRoD against a restatement, and its generic model as FedAvg's."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedpers.clients.fedrod import FedRoDConfig
from fedpers.core.data import ClientData, Data
from fedpers.core.errors import ConfigError
from fedpers.method import LocalConfig, split
from tests.methods.helpers import (
    assert_close,
    chosen,
    config,
    doubles,
    initial_parts,
    network,
    regression,
    samples,
    simulated,
    smoke,
)
from tests.oracles.fedrod import fedrod_round

FED = doubles()
MODEL = network(FED, "mlp")
CFG = FedRoDConfig(LocalConfig(lr=0.3, epochs=2, batch_size=0))


def test_rounds_equal_a_numpy_restatement():
    """Of six clients one lacks a class."""
    assert (FED.label_counts == 0).any()
    server, cohort = simulated("fedrod", CFG, FED, MODEL, 4, seed=1, clients_per_round=4)
    body, head = initial_parts(MODEL, 1)
    own = [{k: np.zeros_like(v) for k, v in head.items()}] * 6
    for t in range(1, 5):
        body, head, own = fedrod_round(body, head, own, samples(FED), chosen(server, t), 0.3, 2)
    phi, theta = split(server.state.params, MODEL.is_head)
    assert_close(theta, body)
    assert_close(phi, head)
    for m, state in cohort.store.states.items():
        assert_close(state.own, own[m])


def test_with_balanced_classes_the_generic_model_is_fedavgs():
    def balanced(k):
        x = torch.from_numpy(np.random.default_rng(k).normal(size=(6 + 3 * (k % 2), 5)))
        part = Data(x, torch.arange(len(x)) % 3, torch.ones(len(x), dtype=torch.float64))
        return ClientData(part, part, part)

    fed = replace(FED, client=balanced, num_train=np.array([6, 9] * 3))
    ours, _ = simulated("fedrod", CFG, fed, MODEL, 3)
    theirs, _ = simulated("fedavg", config("fedavg", local=CFG.local), fed, MODEL, 3)
    for name, value in theirs.state.params.items():
        torch.testing.assert_close(ours.state.params[name], value, rtol=0, atol=1e-13)


def test_a_client_predicts_with_the_sum_of_both_heads():
    server, cohort = simulated("fedrod", CFG, FED, MODEL, 2)
    w, test = server.state.params, FED.client(1).test
    z = MODEL.body(w, test.x)
    outputs = MODEL.head(w, z) + MODEL.head(cohort.store.states[1].own, z)
    right = MODEL.correct(outputs, test.y).mean()
    assert server.client_metrics["test_accuracy"][1] == pytest.approx(float(right))
    loss = MODEL.sample_losses(outputs, test.y).mean()
    assert server.client_metrics["test_loss"][1] == pytest.approx(float(loss), rel=1e-12)


def test_the_generic_head_serves_a_rare_class_better_than_fedavgs():
    """Nine samples in ten are of class 0 on each client; both classes look alike but for a shift."""

    def skewed(k):
        rng = np.random.default_rng(k)
        y = (np.arange(40) % 10 == 0).astype(np.int64)
        x = torch.from_numpy(rng.normal(size=(40, 5)) + y[:, None])
        part = Data(x, torch.from_numpy(y), torch.ones(40, dtype=torch.float64))
        return ClientData(part, part, part)

    fed = replace(doubles(classes=2), client=skewed, num_train=np.full(6, 40))
    model, recall = network(fed), []
    for name in ("fedrod", "fedavg"):
        server, _ = simulated(name, config(name, local=LocalConfig(lr=0.5)), fed, model, 10)
        found = [model(server.state.params, skewed(k).test.x).argmax(1) == 1 for k in range(6)]
        recall.append(float(torch.stack(found)[:, ::10].double().mean()))
    assert recall[0] > recall[1] + 0.1


def test_data_without_classes_are_refused():
    fed = regression([np.ones((3, 2))] * 2, [np.ones((3, 1))] * 2)
    with pytest.raises(ConfigError, match="method fedrod balances classes, and the task is regression"):
        simulated("fedrod", CFG, fed, network(fed, "linear"), 1)


def test_runs_on_digits(tmp_path):
    assert smoke("fedrod", tmp_path)["rounds"] == 3
