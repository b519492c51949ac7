"""What is checked of a reply once for all that are alike."""

from functools import partial

import pytest
import torch
from torch import Tensor

from fedpers.core.plan import Plan
from fedpers.core.pytree import record
from fedpers.flower import validation
from fedpers.flower.messages import Answer, Assessed
from fedpers.flower.observer import RoundLog
from fedpers.flower.transport import Transport
from fedpers.flower.validation import Inspector


@record("test_validation.Sends")
class Sends:
    w: Tensor


@record("test_validation.Asks")
class Asks:
    n: Tensor


@record("test_validation.AsksAgain")
class AsksAgain:
    n: Tensor


@record("test_validation.Reply")
class Reply:
    w: Tensor


def fault(inspector, order, size):
    return inspector.look(order, Reply(torch.zeros(size)))[0]


def test_a_reply_is_compared_with_what_its_own_order_says():
    inspector = Inspector()
    assert fault(inspector, Sends(torch.zeros(2)), 2) is None
    assert fault(inspector, Sends(torch.zeros(3)), 2)  # as long as one that was right, to another order
    assert fault(inspector, Sends(torch.zeros(2)), 2) is None


def test_a_reply_is_compared_with_the_first_to_an_order_of_its_type():
    inspector = Inspector()
    assert fault(inspector, Asks(torch.zeros(1)), 2) is None
    assert fault(inspector, AsksAgain(torch.zeros(1)), 3) is None
    assert fault(inspector, AsksAgain(torch.zeros(1)), 2)
    assert fault(inspector, Asks(torch.zeros(1)), 3)


@pytest.fixture
def looked_at(monkeypatch):
    """The replies that were taken apart."""
    seen, flatten = [], validation.flatten

    def watched(tree):
        seen.append(tree)
        return flatten(tree)

    monkeypatch.setattr(validation, "flatten", watched)
    return lambda: [tree.w.tolist() for tree in seen if isinstance(tree, Reply)]


def test_of_replies_that_are_rows_of_one_stack_the_first_is_taken_apart(looked_at):
    rows, look = torch.eye(3).unbind(), Inspector().look
    assert [look(Asks(torch.zeros(1)), Reply(w), stack=7) for w in rows] == [(None, 12)] * 3
    assert looked_at() == [[1, 0, 0]]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_stack_with_a_number_that_is_none_is_looked_at_row_by_row(bad, looked_at):
    stack = torch.eye(3)
    stack[1, 0] = bad
    look = partial(Inspector().look, Asks(torch.zeros(1)), stack=7)
    assert [fault is None for fault, _ in map(look, map(Reply, stack.unbind()))] == [True, False, True]
    assert len(looked_at()) == 3


def test_rows_of_other_stacks_are_taken_apart(looked_at):
    look = Inspector().look
    assert look(Sends(torch.zeros(3)), Reply(torch.ones(2, 3)[0]), stack=1) == (None, 12)
    assert look(Sends(torch.zeros(3)), Reply(torch.full((2, 3), torch.nan)[0]), stack=2)[0]
    assert look(Sends(torch.zeros(2)), Reply(torch.ones(2, 3)[1]), stack=3)[0]  # not as this order says
    assert look(Asks(torch.zeros(3)), Reply(torch.ones(2, 3)[1]), stack=4) == (None, 12)
    assert len(looked_at()) == 4


def test_replies_of_no_stack_are_each_taken_apart(looked_at):
    look = partial(Inspector().look, Asks(torch.zeros(1)))
    assert [
        fault is None for fault, _ in map(look, [Reply(torch.ones(1)), Reply(torch.full((1,), torch.nan))])
    ] == [True, False]
    assert len(looked_at()) == 2


class Told(Transport):
    """Replies that came from elsewhere, as they were read."""

    def __init__(self, kind, bodies):
        super().__init__(None, Plan(failures="skip"), {k: k for k in range(len(bodies))})
        self._kind, self.bodies = kind, bodies
        self.orders = {k: Asks(torch.zeros(1)) for k in range(len(bodies))}

    def _outcomes(self, messages):
        return ((k, Answer(body, 1, 0)) for k, body in enumerate(self.bodies))


GOOD = {"test_loss": 0.5, "test_accuracy": 0.5, "test_num": 4.0}
ODD = [
    {"test_accuracy": 99.0},
    {"test_accuracy": -0.5},
    {"test_accuracy": True},
    {"test_loss": "x"},
    {"test_num": 1e18},
    {"test_num": 0.5},
    {"test_num": -1.0},
    {"test_num": float("nan")},
    {"test_accuracy_before": 2.0},
]


@pytest.mark.parametrize("change", ODD, ids=str)
@pytest.mark.parametrize("kind", ["evaluate", "train"])
def test_an_evaluation_from_elsewhere_that_cannot_be_is_counted_and_left_out(kind, change, caplog):
    bodies = [GOOD, GOOD | change]
    if kind == "train":
        bodies = [Assessed(Reply(torch.ones(1)), columns) for columns in bodies]
    log, transport = RoundLog(), Told(kind, bodies)
    assert list(transport.open(1, [], log)) == [0] and log.failures == 1
    assert f"client 1 failed in round 1: {next(iter(change))} is" in caplog.text
    assert list(transport.assessed) == ([0] if kind == "train" else [])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_model_that_diverged_is_told_and_not_refused(value):
    log, columns = RoundLog(), GOOD | {"test_loss": value, "test_accuracy": float("nan")}
    assert list(Told("evaluate", [GOOD, columns]).open(1, [], log)) == [0, 1] and log.failures == 0
    assert Told("evaluate", [GOOD, [1.0]]).open(1, [], log).keys() == {0}
