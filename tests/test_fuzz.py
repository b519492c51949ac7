"""A fixed part of the fuzz, and that the fuzz sees what it is there for."""

import os

import pytest
import torch

from fedpers.config.registry import METHODS
from fedpers.core.pytree import leaves, tree_map
from fedpers.engines.runner import RunnerConfig
from fedpers.flower.messages import Answer
from tests.fuzz import STACK, Draw, case_drawn, check, compared, drawn, shaken
from tests.runners import answered, orders_of

LINUX = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")


@LINUX
@pytest.mark.parametrize("seed", range(16))
def test_runners_agree(seed):
    faults, _ = check(drawn(seed))
    assert not faults, f"to repeat it: python -m tests.fuzz --minutes 0 --seed {seed}"


@LINUX
@pytest.mark.parametrize("kind", ["one_sample", "one_class"])
@pytest.mark.parametrize("method", METHODS)
def test_clients_with_one_sample_or_one_class_are_ordinary(method, kind):
    """Two rounds of such clients alone end in numbers, and stack and loop have the same."""
    case = case_drawn(Draw(5, method, "mlp", kind, True, (12, 9, 3, 20), {"lr": 0.1, "batch_size": 5}))
    exchanges = orders_of(case)
    want, found = (answered(case, exchanges, runner) for runner in (STACK, RunnerConfig("loop")))
    answers = [a for each in want for a in each.values()]
    assert {r.header.t for each in exchanges for r in each} == {1, 2}
    assert all(isinstance(a, Answer) for a in answers)
    assert all(torch.as_tensor(v).isfinite().all() for a in answers for v in leaves(a.body))
    assert not list(compared(want, found, [shaken(case, exchanges, 1)], False, set()))


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
