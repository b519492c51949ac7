"""The last clients may be new: they never train, and are evaluated as a split of their own."""

import numpy as np
import pytest
import torch

from fedpers.app.cli import main
from fedpers.checks.toy_data import toy_federation
from fedpers.clients.fedavg import FedAvgClient, FedAvgConfig
from fedpers.core.errors import ConfigError
from fedpers.core.metrics import summarise, tabulate
from fedpers.core.params import sq_norm, sub
from fedpers.core.rng import Stream
from fedpers.flower.roster import Roster
from fedpers.flower.strategy import Plan
from fedpers.flower.unseen_clients import BATCH, UnseenClientOrder, train_locally
from fedpers.learning.gradients import grad
from fedpers.learning.model import build_model
from fedpers.results.summary import read_summary
from fedpers.simulate import simulate
from fedpers.strategies.fedavg import FedAvg

MODEL = build_model("logistic", input_shape=(5,), num_outputs=3, task="classification")


def fedavg(fed, **plan):
    strategy = FedAvg(FedAvgConfig(), MODEL, Plan(seed=1, **plan))
    simulate(strategy, FedAvgClient(strategy.config, MODEL), fed, 3)
    return strategy


def test_training_is_that_of_a_federation_without_them():
    a, b = fedavg(toy_federation(6), new_clients=2), fedavg(toy_federation(4))
    assert all(torch.equal(v, b.state.params[k]) for k, v in a.state.params.items())
    table, other = a.client_metrics, b.client_metrics
    assert table["partition_id"].tolist() == list(range(6))
    assert table["test_accuracy"][:4].tolist() == other["test_accuracy"].tolist()
    assert summarise(table, "test") == summarise(other, "test")
    assert table["new_num"].tolist() == [0, 0, 0, 0, 6, 6]
    assert not np.isnan(table["new_accuracy"][4:]).any()
    assert "new_num" not in other


def test_a_table_of_both_by_hand():
    rows = {0: {"test_num": 4, "test_accuracy": 0.5, "valid_num": 2}, 7: {"test_num": 8, "test_accuracy": 1}}
    table = tabulate(rows, {7})
    assert table["partition_id"].tolist() == [0, 7]
    assert table["test_num"].tolist() == [4, 0]
    assert table["new_num"].tolist() == [0, 8]
    assert table["new_accuracy"][1] == 1
    assert np.isnan([table["new_accuracy"][0], table["test_accuracy"][1]]).all()


def test_somebody_must_train():
    roster = Roster((3, 5), torch.ones(2), {"label_counts": torch.ones(2, 4)})
    stay, new = roster.part(1)
    assert (stay.ids, new) == ((3,), (5,))
    assert stay.properties["label_counts"].shape == (1, 4)
    with pytest.raises(ConfigError, match="new_clients=2"):
        roster.part(2)


def test_local_training_of_new_clients_by_hand():
    """One epoch of SGD in one batch from the global model is one step down its gradient."""
    fed = toy_federation(6)
    strategy = fedavg(fed, new_clients=2, new_epochs=1, new_lr=0.2)
    w, table = strategy.state.params, strategy.client_metrics
    for k in (4, 5):
        data = fed.client(k)
        assert len(data.train) <= BATCH
        slope = grad(MODEL.loss)(w, data.train)
        moved = {n: v - 0.2 * slope[n] for n, v in w.items()}
        place = table["partition_id"].tolist().index(k)
        for column, params in (("new_loss_before", w), ("new_loss", moved)):
            assert table[column][place] == pytest.approx(float(MODEL.loss(params, data.test)), rel=1e-5)


def test_what_weighs_models_is_not_trained():
    """Only dicts of tensors are models; every one that predictions depend on is trained."""
    fed = toy_federation(2)
    theta = (MODEL.init(0), MODEL.init(1))
    c = torch.tensor([0.3, 0.7])

    def predict(shared, state, x):
        return sum(weight * MODEL(t, x) for weight, t in zip(state, shared, strict=True))

    order = UnseenClientOrder(None, 1, 0.1)
    shared, state = train_locally(predict, MODEL, (theta, c), fed.client(0).train, Stream(0, 1, 0), order)
    assert torch.equal(state, c)
    moves = [sub(new, old) for new, old in zip(shared, theta, strict=True)]
    assert float(sq_norm(moves[0])) > 0
    for name in moves[0]:  # the loss sees the sum alone, so the two moves are as 3 to 7
        assert torch.allclose(7 * moves[0][name], 3 * moves[1][name], atol=1e-5)


def test_the_screen_and_the_report_name_what_is_before_adaptation(tmp_path, capsys):
    small = ["data.num_clients=4", "rounds=1", "data.limit=120", "new_clients=2"]
    for name, words in (("a", []), ("b", ["new_epochs=3"])):
        assert main(["run", "method=fedper", *small, *words, f"out={tmp_path / name}"]) == 0
    text = capsys.readouterr().out
    assert "before adaptation (new_epochs=0)" in text
    assert "after it, 3 epochs at rate 0.05 among it" in text
    assert main(["report", str(tmp_path)]) == 0
    page = (tmp_path / "report.md").read_text()
    assert "new clients, which never trained" in page
    assert "before adaptation" in page
    assert read_summary(tmp_path / "a")["new_clients"]["after"] is None
