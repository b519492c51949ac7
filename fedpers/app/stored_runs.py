"""Stored runs as Python objects: tables, pictures, models."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpers.core.data import Federation
from fedpers.core.errors import ConfigError
from fedpers.results import files
from fedpers.results.report.runs import SeedGroup, StoredRun, find_runs, group_by_setting, read_run
from fedpers.results.summary import METRICS

if TYPE_CHECKING:
    from pandas import DataFrame

    from fedpers.app.exported import ExportedModel


@dataclass(frozen=True)
class Picture:
    """A PNG file, which a notebook shows."""

    path: Path

    def _repr_png_(self) -> bytes:
        return self.path.read_bytes()


@dataclass(frozen=True)
class Run:
    """Runs of one setting that differ in their seed alone; often one."""

    paths: tuple[Path, ...]  # their run directories
    method: str
    seeds: tuple[int, ...]
    data: Federation | None = None  # what they were given, instead of a data set's name

    @property
    def summaries(self) -> list[dict[str, Any]]:
        """summary.json of each seed; {} for a run that has not ended."""
        return [dict(r.summary) for r in self._stored()]

    def frame(self) -> "DataFrame":
        """The rows of every metrics.csv, with columns `method` and `seed` before the others."""
        return _table([(self.method, r, r.rows) for r in self._stored()])

    def clients(self) -> "DataFrame":
        """The rows of every clients.csv: each client in the last evaluation, by seed."""
        found = [(self.method, r, files.read_csv(r.path / "clients.csv")[0]) for r in self._stored()]
        return _table(found)

    def plot(self, path: str | Path | None = None) -> Picture:
        """Draw the learning curves, mean and spread over the seeds.

        Args:
            path: a PNG file; default: curves.png in the folder of the runs.
        """
        from fedpers.results.plots.curves import compare

        folder = self.paths[0] if len(self.paths) == 1 else self.paths[0].parent
        rows = {self.method: [r.rows for r in self._stored()]}
        return Picture(compare(rows, Path(path) if path else folder / "curves.png"))

    def model(
        self, name: str | None = None, *, client: int | None = None, seed: int | None = None
    ) -> "ExportedModel":
        """What `fedpers export` writes of the last checkpoint, ready to predict: model(x).

        Args:
            name: which of the server's models; may be left out where the method has one.
            client: instead, the number of a client: the model that it predicts with.
            seed: of which run; default: the first.

        Raises:
            ConfigError: there is no such model or client, or no run has that seed.
            CheckpointError: the run has no checkpoint.
        """
        from fedpers.app.export import model_of

        return model_of(self._path(seed), name, client, self.data)

    def _path(self, seed: int | None) -> Path:
        by_seed = dict(zip(self.seeds, self.paths, strict=True))
        if seed is not None and seed not in by_seed:
            raise ConfigError(
                f"seed={seed}: no run has this seed; these runs have {', '.join(map(str, by_seed))}"
            )
        return self.paths[0] if seed is None else by_seed[seed]

    def _stored(self) -> list[StoredRun]:
        return [read_run(path) for path in self.paths]


def loaded(paths: Sequence[Path], data: Federation | None = None) -> Run:
    """The runs in these folders, which differ in their seed alone.

    Raises:
        ConfigError: they differ in more, or a config cannot be read.
    """
    stored = [read_run(path) for path in paths]
    for run in stored:
        if not run.config:
            raise ConfigError(f"{run.path}: {run.problem}")
    first = stored[0].flat
    free = ("seed", "out", "data.root", "device")
    for run in stored[1:]:
        keys = [k for k in first | run.flat if k not in free and first.get(k) != run.flat.get(k)]
        if keys:
            text = f"{run.path} differs from {stored[0].path} in {', '.join(keys[:3])}"
            raise ConfigError(f"{text}; compare them: fedpers.compare([...])")
    stored.sort(key=lambda r: r.config["seed"])
    seeds = tuple(int(r.config["seed"]) for r in stored)
    return Run(tuple(r.path for r in stored), stored[0].method, seeds, data)


@dataclass(frozen=True)
class Comparison:
    """Finished runs side by side, in groups that differ in their seed alone."""

    groups: dict[str, SeedGroup]  # by name
    left_out: tuple[str, ...] = ()  # runs that are not finished, and why

    @classmethod
    def of(cls, paths: Sequence[Path]) -> "Comparison":
        """The runs in and below the paths.

        Raises:
            ConfigError: there is no run, or none is finished.
        """
        runs = find_runs(paths)
        settings = group_by_setting(runs)
        left_out = tuple(f"{r.path}: {r.problem}" for r in runs if r.problem)
        if not settings:
            raise ConfigError("\n".join(["no finished run to compare", *left_out]))
        several = len(settings) > 1
        groups = {f"{s.name}: {g.name}" if several else g.name: g for s in settings for g in s.groups}
        return cls(groups, left_out)

    def frame(self) -> "DataFrame":
        """The rows of every metrics.csv, with columns `method` (the group's name) and `seed`."""
        return _table([(name, r, r.rows) for name, g in self.groups.items() for r in g.runs])

    def chosen(self, key: str) -> Any:
        """The value of `key` whose runs have the best mean validation score; test data are not used.

        For example `fedpers.compare(["runs/by_K"]).chosen("method.num_canonical")`.

        Raises:
            ConfigError: no finished run has the key and a validation score.
        """
        scores: dict[Any, list[float]] = {}
        for run in (run for group in self.groups.values() for run in group.runs):
            best = run.summary.get("best") or {}
            score = best.get("valid_accuracy", -best.get("valid_loss", math.nan))
            if key in run.flat and not math.isnan(score):
                scores.setdefault(run.flat[key], []).append(score)
        if not scores:
            text = "no finished run has it and a validation score; runs need data.valid_fraction > 0"
            raise ConfigError(f"{key}: {text}")
        return max(scores, key=lambda value: sum(scores[value]) / len(scores[value]))

    def table(self) -> "DataFrame":
        """A row per group: number of `runs`, mean and standard deviation (ddof 1) of last test metrics."""
        import pandas as pd

        rows = {}
        for name, group in self.groups.items():
            values = pd.DataFrame({m: group.values(m) for m in METRICS})
            spread = values.std(ddof=1).add_suffix("_std")
            rows[name] = {"runs": len(group.runs), **values.mean().to_dict(), **spread.to_dict()}
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("method")

    def plot(self, path: str | Path = "comparison.png") -> Picture:
        """Draw the curves of all groups, mean and spread over their seeds, into a PNG file."""
        from fedpers.results.plots.curves import compare

        return Picture(compare({n: [r.rows for r in g.runs] for n, g in self.groups.items()}, Path(path)))


def _table(parts: Sequence[tuple[str, StoredRun, Sequence[Any]]]) -> "DataFrame":
    import pandas as pd

    rows = [{"method": name, "seed": r.config["seed"], **row} for name, r, many in parts for row in many]
    return pd.DataFrame(rows)
