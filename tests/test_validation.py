"""What is checked of a reply once for all that are alike."""

import torch
from torch import Tensor

from fedpers.core.pytree import record
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
