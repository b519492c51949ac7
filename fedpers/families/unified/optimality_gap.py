"""How far a run is from the optimum, measured after each round where all data are at hand.

A method takes part by two members of its strategy (`Solvable`). Columns in the train rows of
metrics.csv: `objective` (F, in float64), `suboptimality` (F - F*) and `distance` (‖w - w*‖² +
Σ_m ‖β_m - β*_m‖²); where the data were made from coefficients `w` and `beta`, `estimation` is the
same distance from these, of u = s·w and β. Measuring is no part of a round's seconds.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Protocol

import torch

from fedpers.core.data import Data
from fedpers.core.errors import ConfigError, FedpersError
from fedpers.core.params import Params
from fedpers.families.unified.objective import Constants, Objective
from fedpers.families.unified.optimum import Flat, Optimum, solve
from fedpers.flower.observer import Observer, RoundLog
from fedpers.learning.model import initial_params

LATEST = (10**12, 0)


class Solvable(Protocol):
    """A strategy that minimises a convex objective of the unified framework."""

    @property
    def objective(self) -> Objective:
        """f_m in this federation; the roster is known."""

    def point(self, client: Any, states: Sequence[Any]) -> tuple[Params, list[Params]]:
        """(w, β of every client) where the method is evaluated."""


class OptimalityGap(Observer):
    """Adds the distance from the optimum to the log of each round; solved before the first."""

    def __init__(self, strategy: Any, grid: Any) -> None:
        self.cohort = grid.cohort
        strategy.connect(grid)
        self.strategy: Solvable = strategy
        self.f, self.ids = self.strategy.objective, strategy.roster.ids
        self.params = initial_params(strategy.model, strategy.plan)
        data = [self.cohort.data(k).train for k in self.ids]
        self.data = [Data(_double(p.x), p.y.cpu(), _double(p.mask)) for p in data]
        self.best = self._solve()

    def _solve(self) -> Optimum:
        if self.f.adapts:
            raise ConfigError(f"optimum=true: none is solved for {type(self.f).__name__}; set optimum=false")
        try:
            return solve(self.f, self.data, self.params)
        except FedpersError as error:
            raise ConfigError(f"optimum=true: {error}; or set optimum=false") from error

    def on_round(self, t: int, log: RoundLog) -> None:
        """Measure where the method is now."""
        states = [self.cohort.state(k, LATEST) for k in self.ids]
        log.extra |= self.measure(*self.strategy.point(self.cohort.client, states))

    def measure(self, w: Params, betas: Sequence[Params]) -> dict[str, float]:
        """The columns for one point."""
        w, betas = _block(w), [_block(b) for b in betas]
        objective = self._value(w, betas)
        away = _sq_dist(w, self.best.w)
        away += sum(_sq_dist(b, c) for b, c in zip(betas, self.best.betas, strict=True))
        found = {"objective": objective, "suboptimality": objective - self.best.value, "distance": away}
        return found | self._estimation(w, betas)

    def _estimation(self, w: Params, betas: Sequence[Params]) -> dict[str, float]:
        truth, shared = self.cohort.federation.truth, Flat(w)
        if not {"w", "beta"} <= truth.keys() or shared.size != truth["w"].size:
            return {}  # nor of a model with a bias, which the data were made without
        u = self.f.s * shared.vector(w) - torch.from_numpy(truth["w"])
        own = torch.stack([Flat(b).vector(b) for b in betas]) - torch.from_numpy(truth["beta"])
        return {"estimation": float((u**2).sum() + (own**2).sum())}

    def facts(self) -> dict[str, Any]:
        """For summary.json: F at the start and at the optimum, and what the theory counts with."""
        w, beta = map(_block, self.f.start(self.params))
        found = {"objective": self.best.value, "start": self._value(w, [beta] * len(self.data))}
        constants = getattr(self.strategy, "constants", None)
        if constants is None:
            return found
        client: Any = self.cohort.client
        c: Constants = constants([client.describe(self.f, p) for p in self.data])
        return found | asdict(c) | {"samples": sum(len(p) for p in self.data) / len(self.data)}

    def _value(self, w: Params, betas: Sequence[Params]) -> float:
        with torch.no_grad():
            each = enumerate(zip(betas, self.data, strict=True))
            values = [self.f.of(m).value(w, b, p) for m, (b, p) in each]
        return float(sum(values)) / len(values)


def observe_optimality_gap(strategy: Any, grid: Any) -> OptimalityGap:
    """The observer of a run whose clients are all in this process (`grid.cohort`).

    Raises:
        ConfigError: the optimum cannot be solved here, and why.
    """
    if not hasattr(type(strategy), "point"):
        raise ConfigError(
            f"optimum=true: {type(strategy).__name__} minimises no objective that "
            "can be solved; set optimum=false"
        )
    if not hasattr(grid, "cohort"):  # `flwr run`, whatever engine= says
        raise ConfigError(
            "optimum=true: needs all clients in this process (fedpers run with "
            "engine=inprocess); set optimum=false"
        )
    return OptimalityGap(strategy, grid)


def _double(x: torch.Tensor) -> torch.Tensor:
    return x.detach().cpu().double()


def _block(block: Params) -> Params:
    return {k: _double(v) for k, v in block.items()}


def _sq_dist(a: Params, b: Params) -> float:
    return sum(float(((a[k] - b[k]) ** 2).sum()) for k in a)
