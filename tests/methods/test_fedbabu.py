"""FedBABU: the head never moves in training, and what fine-tuning moves."""

import numpy as np
import pytest
import torch

from fedpers.clients.fedbabu import BodyAndHead, FedBABUClient, FedBABUConfig
from fedpers.method import LocalConfig, Stream
from tests.methods.helpers import (
    assert_close,
    config,
    doubles,
    initial_parts,
    network,
    same,
    samples,
    simulated,
    smoke,
)
from tests.oracles.fedbabu import one_round


def test_rounds_equal_a_numpy_restatement_and_the_head_stays():
    fed = doubles()
    model = network(fed, "mlp")
    cfg = FedBABUConfig(local=LocalConfig(lr=0.3, steps=4, batch_size=0))
    strategy, _ = simulated("fedbabu", cfg, fed, model, 3, seed=1)
    theta, head = initial_parts(model, 1)
    for _ in range(3):
        theta = one_round(theta, head, samples(fed), 0.3, 4)
    assert_close(strategy.state.theta, theta)
    assert_close(strategy.state.head, head, atol=0)


def test_it_is_fedrep_without_head_steps_where_clients_have_equal_sizes():
    fed, local = doubles(sizes=(12,)), LocalConfig(lr=0.2, epochs=2, batch_size=5)
    model, plan = network(fed, "mlp"), {"seed": 5, "clients_per_round": 4}
    ours, _ = simulated("fedbabu", FedBABUConfig(local=local), fed, model, 3, **plan)
    rep = config("fedrep", head=LocalConfig(epochs=0), body=local, head_init="common")
    theirs, _ = simulated("fedrep", rep, fed, model, 3, **plan)
    assert same(ours.state.theta, theirs.state.part)


@pytest.mark.parametrize(("classes", "hidden"), [(3, 8), (5, 4), (4, 4)])
def test_an_orthogonal_head_has_orthonormal_rows_or_columns(classes, hidden):
    fed = doubles(classes=classes)
    model = network(fed, "mlp", hidden=[hidden])
    cfg = FedBABUConfig("orthogonal", local=LocalConfig(epochs=0))
    strategy, _ = simulated("fedbabu", cfg, fed, model)
    W = strategy.state.head["head.weight"].numpy()
    assert W.shape == (classes, hidden)
    gram = W @ W.T if classes <= hidden else W.T @ W
    np.testing.assert_allclose(gram, np.eye(min(classes, hidden)), atol=1e-14)
    assert not strategy.state.head["head.bias"].any()


@pytest.mark.parametrize(
    ("part", "moved"), [("full", {"head", "dense1"}), ("head", {"head"}), ("body", {"dense1"})]
)
def test_fine_tuning_moves_what_it_should(part, moved):
    fed = doubles()
    model = network(fed, "mlp")
    cfg = FedBABUConfig(finetune=part, finetune_epochs=1, local=LocalConfig(lr=0.3, batch_size=0))
    whole = {k: v.double() for k, v in model.init(0).items()}
    head = {k: v for k, v in whole.items() if model.is_head(k)}
    before = BodyAndHead({k: v for k, v in whole.items() if k not in head}, head)
    data = fed.client(0).train
    after, _ = FedBABUClient(cfg, model).adapt(before, None, data, Stream(0, 1, 0))
    new = after.theta | after.head
    assert {k.partition(".")[0] for k in whole if not torch.equal(new[k], whole[k])} == moved
    assert float(model.loss(new, data)) < float(model.loss(whole, data))


def test_runs_on_digits(tmp_path):
    assert smoke("fedbabu", tmp_path)["rounds"] == 3
