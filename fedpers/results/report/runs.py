"""Run directories as they are read back: stored runs, groups of seeds, settings to compare."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from fedpers.config.run_config import ModelConfig, RunConfig, flatten
from fedpers.core.errors import ConfigError
from fedpers.datasets.config import DataConfig
from fedpers.results import files
from fedpers.results.files import CsvRow, series
from fedpers.results.summary import read_summary

IGNORED = (
    "seed", "out", "resume", "device", "devices", "checkpoint_every", "optimum", "paper", "data.root",
    "observers",
)  # fmt: skip
SEARCH = ".search"  # trials lie below it; they chose the settings of runs and are no runs to be compared


@dataclass(frozen=True)
class StoredRun:
    """One run directory."""

    path: Path
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    rows: Sequence[CsvRow]  # of metrics.csv
    problem: str = ""  # why it does not count; empty if it is finished

    @cached_property
    def flat(self) -> dict[str, Any]:
        """The config with dotted keys."""
        return flatten(self.config)

    @property
    def setting(self) -> str:
        """The name of its setting; runs of one setting are compared with each other."""
        names = [self.config[g]["name"] for g in ("data", "model")]
        experiment = self.config.get("experiment")
        return " · ".join([experiment, *names] if experiment else names)

    @property
    def method(self) -> str:
        """The method's name."""
        return str(self.config["method"]["name"])

    @property
    def paper(self) -> Mapping[str, Any]:
        """What its experiment says about the paper's numbers; often nothing."""
        return self.config.get("paper") or {}

    def averaged(self, last: int) -> "StoredRun":
        """The run, its numbers beside the paper's being means over so many last evaluations."""
        paper = {**self.paper, "last": last} if self.paper else {}
        return replace(self, config={**self.config, "paper": paper})

    @cached_property
    def search(self) -> Mapping[str, Any]:
        """The search that chose its settings, as its search.json has it; empty without one."""
        for folder in (self.path, self.path.parent):
            for path in sorted((folder / SEARCH).glob("*/search.json")):
                found = json.loads(path.read_text(encoding="utf-8"))
                if self.path.name in found["runs"]:
                    return dict(found)
        return {}

    def value(self, metric: str, last: int = 1) -> float:
        """A metric of tests, else of training: the mean over the `last` rounds that have it; nan if none."""
        values = series(self.rows, "test", metric)[1] or series(self.rows, "train", metric)[1]
        return float(np.mean(values[-last:])) if values else math.nan

    def best(self, metric: str) -> float:
        """A test metric of the round that is best on validation; nan where there is none."""
        found = (self.summary.get("best") or {}).get(metric)
        return math.nan if found is None else float(found)


@dataclass(frozen=True)
class SeedGroup:
    """Runs that differ in their seed only."""

    runs: Sequence[StoredRun]
    condition: str = ""  # keys that vary outside of the method; groups of one condition are compared
    own: str = ""  # keys of the method that vary

    @property
    def label(self) -> str:
        """The group's name among those of its condition."""
        return " ".join(filter(None, (self.method, self.own)))

    @property
    def name(self) -> str:
        """The group's name among all."""
        return " ".join(filter(None, (self.method, self.condition, self.own)))

    @property
    def method(self) -> str:
        """The method's name."""
        return self.runs[0].method

    @property
    def paper(self) -> Mapping[str, Any]:
        """What the runs' experiment says about the paper's numbers."""
        return self.runs[0].paper

    def values(self, metric: str, last: int = 1) -> list[float]:
        """A metric, one value a run."""
        return [run.value(metric, last) for run in self.runs]


@dataclass(frozen=True)
class Setting:
    """Groups to compare: those of one data set and model, or of one experiment."""

    name: str
    groups: Sequence[SeedGroup]

    @property
    def paper(self) -> Mapping[str, Any]:
        """What the first experiment that names a paper says about its numbers."""
        return next((r.paper for g in self.groups for r in g.runs if r.paper), {})


def find_runs(paths: Iterable[Path]) -> list[StoredRun]:
    """The runs in and below the paths, each once.

    Raises:
        ConfigError: a path is no folder, or there is no run in it.
    """
    found: dict[Path, StoredRun] = {}
    for path in paths:
        if not path.is_dir():
            raise ConfigError(f"{path}: there is no such folder")
        configs = [c for c in sorted(path.rglob(".hydra/config.yaml")) if SEARCH not in _below(c, path)]
        if not configs:
            raise ConfigError(f"{path}: no run in it or below (a run has .hydra/config.yaml)")
        for config in configs:
            folder = config.parent.parent
            found.setdefault(folder.resolve(), read_run(folder))
    return list(found.values())


def _below(config: Path, folder: Path) -> tuple[str, ...]:
    return config.relative_to(folder).parts


def read_run(folder: Path) -> StoredRun:
    """One run; what is wrong with it is in its `problem`."""
    try:
        config = yaml.safe_load((folder / ".hydra" / "config.yaml").read_text(encoding="utf-8"))
        for name in ("method", "data", "model"):
            config[name]["name"]
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError) as error:
        return StoredRun(folder, {}, {}, [], f"its config cannot be read ({type(error).__name__})")
    metrics, summary = folder / "metrics.csv", read_summary(folder)
    rows = files.read_csv(metrics)[0] if metrics.is_file() else []
    return StoredRun(folder, config, summary, rows, _problem(config, summary, rows))


def _problem(config: Mapping[str, Any], summary: Mapping[str, Any], rows: Sequence[CsvRow]) -> str:
    if summary.get("status") == "failed":
        return f"failed: {summary.get('error', 'no reason noted')}"
    done = max((r["round"] for r in rows), default=0)
    if not summary:
        return f"unfinished: round {done} of {config.get('rounds', '?')}"
    if not any(r["split"] == "test" for r in rows):
        return "metrics.csv has no evaluation on the test split"
    return ""


def group_by_setting(runs: Iterable[StoredRun]) -> list[Setting]:
    """Finished runs by setting, then by method and by whatever else was varied but the seed."""
    settings: dict[str, list[StoredRun]] = {}
    for run in runs:
        if not run.problem:
            settings.setdefault(run.setting, []).append(run)
    return [Setting(name, _group_by_seed(many)) for name, many in settings.items()]


def _group_by_seed(runs: Sequence[StoredRun]) -> list[SeedGroup]:
    """Groups named by the method and by the keys that vary; a method's keys within its own runs."""
    outside = [k for k in _varied(runs) if not k.startswith("method.")]
    groups: dict[tuple[str, str, str], list[StoredRun]] = {}
    for run in runs:
        alike = [r for r in runs if r.method == run.method and _text(r, outside) == _text(run, outside)]
        own = _varied(alike)
        inside = [k for k in own if k.startswith("method.")]
        groups.setdefault((run.method, _text(run, outside), _text(run, inside)), []).append(run)
    return [SeedGroup(many, condition, own) for (_, condition, own), many in sorted(groups.items())]


def conditions(setting: Setting) -> list[tuple[str, list[SeedGroup]]]:
    """(what varies outside of the methods, the groups that share it)."""
    found: dict[str, list[SeedGroup]] = {}
    for each in setting.groups:
        found.setdefault(each.condition, []).append(each)
    return list(found.items())


@cache
def _defaults() -> dict[str, Any]:
    """What a run of an earlier version had for keys that were added since, but for methods and models."""
    plain = json.loads(json.dumps(asdict(RunConfig("", {}, DataConfig(), ModelConfig("")))))
    return {k: v for k, v in flatten(plain).items() if k.partition(".")[0] not in ("method", "model")}


def _value(run: StoredRun, key: str) -> Any:
    return run.flat[key] if key in run.flat else _defaults().get(key)


def _text(run: StoredRun, keys: Sequence[str]) -> str:
    """The keys that the run has; those of another objective or model say nothing about it."""
    return " ".join(f"{k}={_show(_value(run, k))}" for k in keys if k in run.flat or k in _defaults())


def _varied(runs: Sequence[StoredRun]) -> list[str]:
    """The keys whose values differ between the runs, but for those in IGNORED."""
    keys = dict.fromkeys(k for run in runs for k in run.flat)
    kept = [k for k in keys if k not in IGNORED and k.split(".")[0] not in IGNORED]
    return [k for k in kept if len({_show(_value(run, k)) for run in runs}) > 1]


def _show(value: Any) -> str:
    return "null" if value is None else str(value)
