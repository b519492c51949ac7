"""Stock Flower strategies and apps run on our grids unchanged."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian

from fedpers.bench.app_grid import AppGrid
from fedpers.checks.case import make_case, same
from fedpers.clients.fedavg import FedAvgClient, FedAvgConfig
from fedpers.engines.cohort import Cohort
from fedpers.engines.inprocess_grid import InProcessGrid
from fedpers.flower.messages import open_content
from fedpers.strategies.fedavg import FedAvg as OurFedAvg

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Adds 1 + its partition id, weighs as much; counts its visits."""
    k = int(context.node_config["partition-id"])
    context.state["seen"] = MetricRecord({"visits": visits(context) + 1})
    arrays = [a + 1 + k for a in message.content["arrays"].to_numpy_ndarrays()]
    metrics = MetricRecord({"num-examples": 1 + k, "loss": float(k)})
    content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Fails on partition 2."""
    if context.node_config["partition-id"] == 2:
        raise RuntimeError("no test data")
    metrics = MetricRecord({"num-examples": 1, "accuracy": 0.5})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def visits(context):
    return int(context.state["seen"]["visits"]) if "seen" in context.state else 0


def test_flowers_fedavg_runs_on_the_app_grid():
    grid = AppGrid(app, 3)
    assert isinstance(grid, Grid)
    first = ArrayRecord([np.zeros((2, 2)), np.ones(1)])
    result = FedAvg(min_available_nodes=3).start(grid, first, num_rounds=4)
    a, b = result.arrays.to_numpy_ndarrays()
    step = (1 * 1 + 2 * 2 + 3 * 3) / 6  # Σ n_k (1 + k) / Σ n_k, a round
    np.testing.assert_allclose(a, 4 * step)
    np.testing.assert_allclose(b, 1 + 4 * step)
    assert [visits(c) for c in grid.contexts.values()] == [4, 4, 4]
    assert result.train_metrics_clientapp[1]["loss"] == pytest.approx((0 * 1 + 1 * 2 + 2 * 3) / 6)
    assert result.evaluate_metrics_clientapp[4]["accuracy"] == 0.5  # of those that did not fail


@pytest.mark.parametrize("strategy", [FedMedian, FedAdam])
def test_other_stock_strategies_too(strategy):
    first = ArrayRecord([np.zeros(3)])
    kind = strategy(min_available_nodes=3, fraction_evaluate=0.0)
    found = kind.start(AppGrid(app, 3), first, num_rounds=2).arrays.to_numpy_ndarrays()[0]
    assert np.all(found > 0)
    assert strategy is not FedMedian or np.allclose(found, 4.0)  # the median client adds 2


def test_a_stock_strategy_reads_our_clients_messages():
    """What is not packed in process is a genuine message to a strategy that reads it."""
    case = make_case(OurFedAvg, FedAvgClient, FedAvgConfig())
    grid, server = InProcessGrid(case.cohort()), case.server()
    server.connect(grid)
    orders = server.configure_train(1, ArrayRecord(), {}, grid)
    replies = grid.send_and_receive(orders)
    assert all(isinstance(m.content, RecordDict) and not m.has_error() for m in replies)
    _, body = open_content(replies[0].content)
    read = replies[1].content["arrays"].to_numpy_ndarrays()
    assert [a.shape for a in read] == [tuple(v.shape) for v in body.params.values()]
    assert replies[0].content["metrics"]["num-examples"] == case.federation.num_train[0]


class Curious(OurFedAvg):
    """Looks at every message that goes out and comes back."""

    def configure_train(self, *args):
        self.sent = list(super().configure_train(*args))
        return self.sent[::-1]

    def aggregate_train(self, server_round, replies):
        self.got = list(replies)
        return super().aggregate_train(server_round, self.got)


def test_messages_are_made_when_somebody_looks_and_change_nothing():
    case = make_case(OurFedAvg, FedAvgClient, FedAvgConfig())
    plain = case.server()
    plain.start(InProcessGrid(case.cohort()), num_rounds=2)
    server = Curious(plain.config, plain.model, plain.plan)
    server.start(InProcessGrid(case.cohort()), num_rounds=2)
    assert same(server.state, plain.state)
    ids = [m.metadata.message_id for m in server.sent[::-1]]
    assert [m.metadata.reply_to_message_id for m in server.got] == ids
    assert len({*ids, *(m.metadata.message_id for m in server.got)}) == 2 * len(ids)


def test_an_unread_exchange_makes_no_message():
    case = make_case(OurFedAvg, FedAvgClient, FedAvgConfig())
    grid, server = InProcessGrid(case.cohort()), case.server()
    server.connect(grid)
    orders = server.configure_train(1, ArrayRecord(), {}, grid)
    replies = server.transport.send(orders)
    assert orders.unread and replies.unread and len(replies) == len(orders)
    server.aggregate_train(1, replies)
    assert orders.unread and replies.unread
    looked = replies[0]  # now there are messages, with addresses
    assert looked.metadata.reply_to_message_id == orders[0].metadata.message_id != ""
    assert looked.metadata.src_node_id == orders[0].metadata.dst_node_id


def test_an_order_to_many_clients_is_packed_once_and_stays_one_object():
    class Listing(Cohort):
        def handle(self, requests):
            self.orders = {id(r.order) for r in requests}
            return super().handle(requests)

    case = make_case(OurFedAvg, FedAvgClient, FedAvgConfig())
    grid, server = InProcessGrid(case.cohort(Listing)), case.server()
    server.connect(grid)
    orders = server.configure_train(1, ArrayRecord(), {}, grid)
    assert len({id(m.content) for m in orders}) == 1
    grid.send_and_receive(orders)
    assert len(grid.cohort.orders) == 1


def test_messages_are_pulled_once():
    grid = AppGrid(app, 2)
    content = RecordDict({"arrays": ArrayRecord([np.zeros(1)])})
    ids = grid.push_messages([Message(content, node, "train") for node in grid.get_node_ids()])
    assert len(set(ids)) == 2
    assert len(grid.pull_messages(ids)) == 2
    assert grid.pull_messages(ids) == []
    again = grid.push_messages([Message(content, node, "train") for node in grid.get_node_ids()])
    assert len(grid.pull_messages(reply_to_message_ids=again[:1])) == 1  # as Flower 1.43 names them
    assert len(grid.pull_messages(message_ids=again)) == 1


def test_a_federation_may_hold_arrays_that_cannot_be_written(monkeypatch):
    """Arrays that are mapped from a file, or one row repeated; the others are not copied."""
    cohort, writable = make_case(OurFedAvg, FedAvgClient, FedAvgConfig()).cohort(), np.ones((5, 3))
    shut = np.broadcast_to(np.arange(3.0), (5, 3))
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for counts in (shut, writable):
                fed = replace(cohort.federation, label_counts=counts, num_train=counts[:, 1])
                monkeypatch.setattr(cohort, "federation", fed)
                _, roster = InProcessGrid(cohort).roster(["label_counts"])
                told = roster.properties["label_counts"]
                assert (told.numpy() == counts).all() and (roster.num_examples.numpy() == counts[:, 1]).all()
                assert np.shares_memory(told.numpy(), counts) == counts.flags.writeable
    finally:
        torch.set_warn_always(False)
