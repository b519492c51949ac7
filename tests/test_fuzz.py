"""A fixed part of the fuzz, and that the fuzz sees what it is there for."""

import os

import pytest
import torch

from fedpers.core.pytree import tree_map
from tests.fuzz import STACK, Draw, case_drawn, check, compared, drawn, shaken
from tests.runners import answered, orders_of

LINUX = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")


@LINUX
@pytest.mark.parametrize("seed", range(16))
def test_runners_agree(seed):
    faults, _ = check(drawn(seed))
    assert not faults, f"to repeat it: python -m tests.fuzz --minutes 0 --seed {seed}"


def scaled(answers, factor):
    """The answers, client 1's multiplied."""
    change = lambda x: x * factor if isinstance(x, torch.Tensor) else x  # noqa: E731
    return [
        {k: a._replace(body=tree_map(change, a.body)) if k == 1 else a for k, a in each.items()}
        for each in answers
    ]


@pytest.mark.parametrize(
    "factor, bits, seen", [(1, True, 0), (1 + 3e-7, True, 1), (1 + 1e-6, False, 0), (1.001, False, 1)]
)
def test_a_difference_is_seen_and_rounding_is_not(factor, bits, seen):
    draw = Draw(1, "fedavg", "mlp", "plain", False, (8,), {"lr": 0.1, "batch_size": 5})
    case = case_drawn(draw)
    exchanges = orders_of(case)
    want, moved = answered(case, exchanges, STACK), [shaken(case, exchanges, 1)]
    faults = list(compared(want, scaled(want, factor), moved, bits, set()))
    assert bool(faults) == bool(seen)
    assert all("client 1" in x for x in faults)
