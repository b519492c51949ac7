"""A stack's kernels read each client's inputs where they lie: no method copies them in its rounds."""

from collections.abc import Callable

import pytest

from fedpers.bench.engines import play
from fedpers.checks.toy_data import toy_federation
from fedpers.config import compose
from fedpers.config.registry import METHODS, method
from fedpers.core.plan import Plan
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.runner import RunnerConfig
from fedpers.engines.stacked_data import Block
from fedpers.learning.kernels.library import library
from fedpers.learning.model import build_model


@pytest.mark.skipif(library() is None, reason="no C compiler")
@pytest.mark.parametrize("name", sorted(METHODS.keys() - {"fedbn", "fedpac"}))
def test_no_round_copies_the_inputs_of_a_stack(name, monkeypatch):
    """All but two methods.

    FedBN takes no model without normalisation. FedPAC's V_i is a second moment of features, which torch
    computes; those of a logistic model are the inputs.
    """
    stacked: list[str] = []
    after: list[int] = []

    def stack(self, field, made=Block.stack):
        stacked.append(field)
        return made(self, field)

    monkeypatch.setattr(Block, "stack", stack)
    fed = toy_federation(6, (9, 13, 6), dim=5, classes=3)
    model = build_model("logistic", input_shape=(5,), num_outputs=3, task="classification")
    config, halves = compose.load([f"method={name}"]).method, method(name)
    plan = Plan(clients_per_round=3, eval_every=0)
    strategy, client = halves.strategy_class()(config, model, plan), halves.client_class()(config, model)
    strategy.public = fed.public
    done: Callable[..., None] = lambda t, log: after.append(stacked.count("x"))  # noqa: E731
    play(strategy, client, fed, RamStore(), RunnerConfig(runner="stack"), 5, done)
    first, *_, last = after[:-1]  # methods may look at all samples before the first round and after the last
    assert first == last
