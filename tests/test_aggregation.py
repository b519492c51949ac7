"""Robust means against closed forms, a planted liar, and the refusals."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import trim_mean

from fedpers.app.build import assemble
from fedpers.checks.case import run
from fedpers.config import compose
from fedpers.config.registry import METHODS
from fedpers.core.aggregation import AggregationConfig, aggregate
from fedpers.core.errors import ConfigError
from fedpers.core.params import Params, weighted_mean
from fedpers.engines.cohort import Cohort
from fedpers.flower.messages import Answer
from fedpers.flower.strategy import Plan
from tests.methods.helpers import config, contract_case
from tests.test_privacy import LSGD

AVERAGING = sorted(n for n, row in METHODS.items() if not row.strategy_class().not_robust)


def items(count: int) -> list[Params]:
    rng = np.random.default_rng(count)
    return [
        {"a": torch.tensor(rng.normal(size=(2, 3))), "b": torch.tensor(rng.normal(size=4))}
        for _ in range(count)
    ]


@pytest.mark.parametrize("count", [1, 4, 5])
def test_median_and_trimmed_mean_are_numpys_and_scipys(count: int) -> None:
    given = items(count)
    weights = list(range(1, count + 1))
    for how, want in (
        (AggregationConfig("median"), lambda x: np.median(x, 0)),
        (AggregationConfig("trimmed", trim=0.3), lambda x: trim_mean(x, 0.3, 0)),
    ):
        found = aggregate(given, weights, None, how)
        for name in ("a", "b"):
            stack = np.stack([p[name].numpy() for p in given])
            np.testing.assert_allclose(found[name].numpy(), want(stack), atol=1e-14)


def test_the_norm_bound_shortens_long_changes_only() -> None:
    """Changes (3, 4) and (0, 1) from (1, 1): the first has norm 5 and becomes (0.6, 0.8)."""
    start = {"w": torch.tensor([1.0, 1.0])}
    sent = [{"w": torch.tensor([4.0, 5.0])}, {"w": torch.tensor([1.0, 2.0])}]
    how = AggregationConfig("norm_bound", max_norm=1.0)
    assert aggregate(sent, [3, 1], start, how)["w"].tolist() == pytest.approx(
        [1 + 0.75 * 0.6, 1 + 0.75 * 0.8 + 0.25]
    )
    changes = [{"w": torch.tensor([3.0, 4.0])}, {"w": torch.tensor([0.0, 1.0])}]
    assert aggregate(changes, [1, 1], None, how)["w"].tolist() == pytest.approx([0.3, 0.9])


def test_mean_is_the_weighted_mean_bit_for_bit() -> None:
    given = items(3)
    found, want = aggregate(given, [1, 2, 3], None, AggregationConfig()), weighted_mean(given, [1, 2, 3])
    assert all(torch.equal(found[k], want[k]) for k in want)


# ---- methods ------------------------------------------------------------------------------------


class _Liar(Cohort):
    """Client 0 answers with numbers that are far away from everybody's."""

    def handle(self, requests: Any) -> list[Any]:
        found = super().handle(requests)
        for i, (request, answer) in enumerate(zip(requests, found, strict=True)):
            if request.k == 0 and request.header.kind == "train" and isinstance(answer, Answer):
                found[i] = answer._replace(body=_far(answer.body))
        return found


def _far(body: Any) -> Any:
    from fedpers.core.pytree import tree_map

    return tree_map(lambda x: x + 1e4, body)


def settings(name: str) -> Any:
    return compose.load(LSGD).method if name in ("lsgd", "apfl", "fedres") else config(name)


def distance(name: str, kind: AggregationConfig) -> float:
    """How far a liar moves the server's state, in its largest number."""
    from fedpers.core.pytree import leaves

    ends = []
    for cohort in (Cohort, _Liar):
        case = contract_case(
            name, settings(name), plan=Plan(seed=3, eval_every=0, aggregation=kind), rounds=1
        )
        server, _ = run(case, case.cohort(cohort))
        ends.append(
            [x for x in leaves(server.state) if isinstance(x, torch.Tensor) and x.is_floating_point()]
        )
    return max(float((a - b).abs().max()) for a, b in zip(*ends, strict=True))


@pytest.mark.parametrize("name", AVERAGING)
def test_a_liar_moves_the_mean_and_not_the_median(name: str) -> None:
    assert distance(name, AggregationConfig()) > 100
    assert distance(name, AggregationConfig("median")) < 10


@pytest.mark.parametrize(
    "kind", [AggregationConfig("trimmed", trim=0.2), AggregationConfig("norm_bound", max_norm=0.1)]
)
def test_the_other_robust_means_hold_too(kind: AggregationConfig) -> None:
    """The toy federation has 6 clients, of which trim=0.2 cuts off one at either end."""
    assert all(distance(name, kind) < 10 for name in ("fedavg", "fedper", "fedrecon"))


def test_methods_that_do_more_than_average_refuse_with_their_reason() -> None:
    base = compose.load(["aggregation=median", "data.num_clients=4"])
    reasons = set()
    for name in sorted(METHODS.keys() - set(AVERAGING)):
        cfg = replace(base, method_name=name, method=config(name))
        with pytest.raises(
            ConfigError, match=f"aggregation=median method={name}: .*; use aggregation=mean"
        ) as caught:
            assemble(cfg)
        reasons.add(str(caught.value).partition(": ")[2])
    assert len(reasons) > 5


def test_keys_without_effect_and_wrong_values_are_refused() -> None:
    for words, text in [
        (
            ["aggregation.trim=0.2"],
            "aggregation.trim: without effect for aggregation=mean; aggregation=trimmed",
        ),
        (["aggregation=trimmed", "aggregation.trim=0.5"], "aggregation.trim=0.5: must be below 0.5"),
        (["aggregation=norm_bound", "aggregation.max_norm=0"], "aggregation.max_norm=0: must be above 0"),
    ]:
        with pytest.raises(ConfigError, match=text):
            compose.load(words)
