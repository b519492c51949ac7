"""Methods ranked by what validation chose, with their differences to the references."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from fedpers.results import files
from fedpers.results.report import statistics
from fedpers.results.report.paired_tests import Difference
from fedpers.results.report.runs import SeedGroup, Setting, StoredRun, conditions
from fedpers.results.report.statistics import Clients, Scores

REFERENCES = ("local", "fedavg")


@dataclass
class Standing:
    """One group of runs and where it stands. Client numbers are those after the last round."""

    group: SeedGroup
    scores: Scores  # seed -> the metric that ranks
    rank: int = 0
    to: dict[str, Difference | None] = field(default_factory=dict)  # by reference
    clients: Clients | None = None  # against local training

    @property
    def name(self) -> str:
        """The group's name in its comparison."""
        return self.group.label

    @property
    def score(self) -> float:
        """Mean over seeds."""
        return float(np.mean(list(self.scores.values())))

    @cached_property
    def per_client(self) -> dict[int, dict[int, float]]:
        """{seed: {partition id: test accuracy}}; empty where clients have none."""
        found = {seed_of(run): client_accuracy(run) for run in self.group.runs}
        return {seed: table for seed, table in found.items() if table}

    @property
    def client_spread(self) -> float:
        """Standard deviation over the clients of a run, mean over the runs."""
        return statistics.mean([float(np.std(list(t.values()))) for t in self.per_client.values()])

    @property
    def worst_decile(self) -> float:
        """Of the last round, mean over the runs."""
        return statistics.mean(self.group.values("worst_decile"))


@dataclass
class Comparison:
    """Groups that differ in nothing but the method: same data, model and budget."""

    name: str
    metric: str  # accuracy or loss
    by_validation: bool  # whether validation chose the round; otherwise it is the last one
    rows: Sequence[Standing]  # best first

    @property
    def larger_is_better(self) -> bool:
        """True of accuracies."""
        return self.metric == "accuracy"

    @cached_property
    def verdict(self) -> statistics.Verdict:
        """Who is on top."""
        return statistics.verdict({s.name: s.scores for s in self.rows}, self.larger_is_better)

    def reference(self, method: str) -> Standing | None:
        """The best group of a method; None where it was not run."""
        return next((s for s in self.rows if s.group.method == method), None)


def compare(setting: Setting) -> list[Comparison]:
    """A comparison for each set of conditions (data, rounds, ... but not a method's own keys)."""
    found = conditions(setting)
    return [_compare(f"{setting.name} · {text}" if text else setting.name, many) for text, many in found]


def _compare(name: str, groups: Sequence[SeedGroup]) -> Comparison:
    runs = [run for group in groups for run in group.runs]
    accuracy = any(not math.isnan(run.value("accuracy")) for run in runs)
    metric = "accuracy" if accuracy else "loss"
    chosen = all(not math.isnan(run.best(metric)) for run in runs)
    rows = [Standing(group, _scores(group, metric, chosen)) for group in groups]
    rows = [s for s in rows if s.scores]
    rows.sort(key=lambda s: -s.score if accuracy else s.score)
    comparison = Comparison(name, metric, chosen, rows)
    for place, standing in enumerate(rows, 1):
        standing.rank = place
    for method in REFERENCES:
        _refer(comparison, method)
    return comparison


def _scores(group: SeedGroup, metric: str, chosen: bool) -> Scores:
    """One value a seed; runs that repeat a seed are averaged, they are no further evidence."""
    values: dict[int, list[float]] = {}
    for run in group.runs:
        value = run.best(metric) if chosen else run.value(metric)
        if not math.isnan(value):
            values.setdefault(seed_of(run), []).append(value)
    return {seed: float(np.mean(many)) for seed, many in sorted(values.items())}


def _refer(comparison: Comparison, method: str) -> None:
    """Fill in the differences to a reference; those of all other rows are one family."""
    reference = comparison.reference(method)
    if reference is None:
        return
    others = [s for s in comparison.rows if s is not reference]
    for s in others:
        s.to[method] = statistics.paired(s.scores, reference.scores, len(others))
        if method == "local":
            s.clients = statistics.clients(s.per_client, reference.per_client, len(others))


def seed_of(run: StoredRun) -> int:
    """The run's seed."""
    return int(run.config.get("seed", 0))


def client_rows(run: StoredRun) -> list[files.CsvRow]:
    """The rows of clients.csv, which has the last evaluation."""
    path = run.path / "clients.csv"
    return files.read_csv(path)[0] if path.is_file() else []


def client_accuracy(run: StoredRun) -> dict[int, float]:
    """{partition id: test accuracy}; empty where clients have none."""
    return {r["partition_id"]: float(r["accuracy"]) for r in client_rows(run) if "accuracy" in r}


def client_names(run: StoredRun) -> dict[int, str]:
    """{partition id: what the data calls the client}; empty where it has no names."""
    return {r["partition_id"]: r["name"] for r in client_rows(run) if "name" in r}
