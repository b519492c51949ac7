"""A method on a small federation, for the contract checks and the tests."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedpers.checks.toy_data import toy_federation
from fedpers.core.data import Federation
from fedpers.core.host import borrowed
from fedpers.core.plan import Plan
from fedpers.core.pytree import leaves
from fedpers.engines.cohort import Cohort
from fedpers.engines.inprocess_grid import InProcessGrid
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.runner import RunnerConfig
from fedpers.flower.client import PersonalizedClient
from fedpers.flower.strategy import PersonalizedStrategy
from fedpers.learning.model import Model, build_model


@dataclass(frozen=True)
class Case:
    """A method on a small federation."""

    strategy: type[PersonalizedStrategy]
    client: type[PersonalizedClient]
    config: Any
    federation: Federation
    model: Model
    plan: Plan = Plan(seed=3, clients_per_round=4, eval_every=2)  # noqa: RUF009  (it is frozen)
    rounds: int = 3

    def server(self, **plan: Any) -> PersonalizedStrategy:
        """A new server half."""
        made = self.strategy(self.config, self.model, replace(self.plan, **plan))
        made.public = self.federation.public
        return made

    def cohort(
        self, kind: type[Cohort] = Cohort, store: Any = None, runner: RunnerConfig | None = None
    ) -> Any:
        """A new client side (a Cohort of the given kind)."""
        client = self.client(self.config, self.model)
        runner = runner or RunnerConfig()
        return kind(client, self.federation, store or RamStore(), self.plan, runner)


def make_case(
    strategy: type[PersonalizedStrategy],
    client: type[PersonalizedClient],
    config: Any,
    task: str = "classification",
    model: str | None = None,
    **options: Any,
) -> Case:
    """A case on toy data; the model is an MLP for classes, else linear."""
    federation = toy_federation(task=task)
    name = model or {"classification": "mlp", "binary": "logistic"}.get(task, "linear")
    extra: dict[str, Any] = {"hidden": [4]} if name == "mlp" else {}
    shape, outputs = federation.input_shape, federation.num_classes
    built = build_model(name, input_shape=shape, num_outputs=outputs, task=task, **extra)
    return Case(strategy, client, config, federation, built, **options)


def run(case: Case, cohort: Any = None, **plan: Any) -> tuple[PersonalizedStrategy, Any]:
    """All rounds of a case."""
    server, cohort = case.server(**plan), cohort or case.cohort()
    with borrowed():
        server.start(InProcessGrid(cohort), num_rounds=case.rounds)
    return server, cohort


def same(a: Any, b: Any) -> bool:
    """Equal trees, tensors bit for bit."""
    first, second = leaves(a), leaves(b)
    return len(first) == len(second) and all(
        torch.equal(x, y) if isinstance(x, Tensor) else x == y for x, y in zip(first, second, strict=True)
    )


def close(a: Any, b: Any, tolerance: float = 1e-4) -> bool:
    """Equal trees up to rounding, which some methods amplify."""
    first, second = leaves(a), leaves(b)

    def near(x: Any, y: Any) -> bool:
        one, two = torch.as_tensor(x), torch.as_tensor(y)
        return torch.allclose(one, two, rtol=tolerance, atol=tolerance, equal_nan=True)

    return len(first) == len(second) and all(
        near(x, y) if isinstance(x, Tensor | float) else x == y for x, y in zip(first, second, strict=True)
    )


def require(condition: bool, message: str) -> None:
    """Raise AssertionError unless the condition holds."""
    if not condition:
        raise AssertionError(message)
