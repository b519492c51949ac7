"""Observers of a run, and the cost of a round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


@dataclass
class RoundLog:
    """The cost of a round, and the method's own numbers."""

    seconds: float = 0.0
    bytes_up: int = 0  # of distinct tensors in replies
    bytes_down: int = 0  # of distinct tensors in each order
    gradient_evals: int = 0  # samples whose gradient passed back through the body, over all clients
    body_forwards: int = 0  # samples that passed forward through the body
    head_steps: int = 0  # samples whose gradient was taken in a head alone, on features
    pairs: int = 0  # of models whose entries the server multiplied with each other, to mix or to compare them
    failures: int = 0
    releases: list[int] = field(default_factory=list)  # clients by order, if there is noise on replies
    extra: dict[str, float] = field(default_factory=dict)


class Observer:
    """Watches a run. Every method may be left as it is."""

    def on_start(self, out: Path, config: Mapping[str, Any]) -> None:
        """The run of `config`, plain values as in .hydra/config.yaml, begins or goes on in `out`."""

    def on_round(self, t: int, log: RoundLog) -> None:
        """Round t is done; the strategy's state is new."""

    def on_evaluation(self, t: int, clients: dict[str, np.ndarray], arrays: dict[str, np.ndarray]) -> None:
        """Clients were evaluated after round t: one column a metric, one row a client."""

    def should_stop(self, t: int) -> bool:
        """Whether the run should end with round t, which has been evaluated if it is one of those."""
        return False

    def after_round(self, t: int) -> None:
        """Round t and its evaluation are done, and all observers have seen them."""

    def on_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rows were added to metrics.csv; each has `round`, `split` and its numbers."""

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """The run has ended; `summary` is what summary.json holds, its `status` finished or failed."""
