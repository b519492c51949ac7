"""What is the same for every method: the plan of a run, what a round cost, who watches."""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from fedpers.models import Model
from fedpers.params import Params
from fedpers.record import record


@dataclass(frozen=True)
class Plan:
    """What is the same for every method: who takes part, when to evaluate, what a failure means."""

    seed: int = 0
    clients_per_round: int | None = None  # r; None is everybody
    participation: Literal["fixed", "bernoulli"] = "fixed"
    eval_every: int = 1
    eval_clients: int | None = None  # a fixed sample of this size; None: all
    eval_protocol: Literal["all_after", "participants_local"] = "all_after"
    failures: Literal["raise", "skip"] = "raise"
    num_clients: int | None = None  # wait for so many; None: those there are
    new_clients: int = 0                                 # the last ones never train: split "new"
    device: str = "cpu"
    dtype: Literal["float32", "float64"] = "float32"

    def initial(self, model: Model) -> Params:
        """The model's initial parameters; the same on the server and on every client."""
        dtype = getattr(torch, self.dtype)
        return {k: v.to(self.device, dtype) for k, v in model.init(self.seed).items()}


@dataclass
class RoundLog:
    """What a round cost, and the method's own numbers."""

    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    gradient_evals: int = 0  # samples whose gradient was taken, over all clients
    failures: int = 0
    extra: dict[str, float] = field(default_factory=dict)


class Observer:
    """Watches a run. Every method may be left as it is."""

    def on_round(self, t: int, log: RoundLog) -> None:
        """Round t is done; the strategy's state is new."""

    def on_evaluation(
        self, t: int, clients: dict[str, np.ndarray], arrays: dict[str, np.ndarray]
    ) -> None:
        """Clients were evaluated after round t: one column a metric, one row a client."""

    def after_round(self, t: int) -> None:
        """Round t and its evaluation are done and told."""


@record("flower.Assessed")
class Assessed:
    """A reply together with metrics of the participant's model right after its local work."""

    reply: Any
    metrics: dict[str, float]
