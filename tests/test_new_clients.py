"""The last clients may be new: they never train, and are evaluated as a split of their own."""

import numpy as np
import pytest
import torch

from fedpers.checks.toy_data import toy_federation
from fedpers.clients.fedavg import FedAvgClient, FedAvgConfig
from fedpers.core.errors import ConfigError
from fedpers.core.metrics import summarise, tabulate
from fedpers.flower.roster import Roster
from fedpers.flower.strategy import Plan
from fedpers.learning.model import build_model
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
