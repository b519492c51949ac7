"""Run directories as they are read back: runs, groups of seeds, settings to compare."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from fedpers.core.errors import ConfigError
from fedpers.results import files
from fedpers.results.files import Row
from fedpers.results.plots.curves import series
from fedpers.results.recorder import read_summary

IGNORED = ("seed", "out", "resume", "device", "checkpoint_every", "optimum", "paper", "data.root")


@dataclass(frozen=True)
class Run:
    """One run directory."""

    path: Path
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    rows: Sequence[Row]
    problem: str = ""  # why it does not count; empty if it is finished

    @cached_property
    def flat(self) -> dict[str, Any]:
        """The config with dotted keys."""
        return _flatten(self.config)

    @property
    def setting(self) -> str:
        """Runs of one setting are compared with each other."""
        names = [self.config[g]["name"] for g in ("data", "model")]
        experiment = self.config.get("experiment")
        return " · ".join([experiment, *names] if experiment else names)

    @property
    def method(self) -> str:
        """The method's name."""
        return str(self.config["method"]["name"])

    def value(self, metric: str, last: int = 1) -> float:
        """A test metric: of the last evaluation, or the mean over the `last` ones."""
        values = series(self.rows, "test", metric)[1]
        return float(np.mean(values[-last:])) if values else math.nan

    def best(self, metric: str) -> float:
        """A test metric of the round that is best on validation."""
        found = (self.summary.get("best") or {}).get(metric)
        return math.nan if found is None else float(found)


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed only."""

    name: str
    method: str
    runs: Sequence[Run]
    condition: str = ""  # what was varied outside of the method; groups of one condition are compared

    def values(self, metric: str, last: int = 1) -> list[float]:
        """One value a run."""
        return [run.value(metric, last) for run in self.runs]


@dataclass(frozen=True)
class Setting:
    """Groups to compare: one data set and model, or one experiment."""

    name: str
    groups: Sequence[Group]
    paper: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """What is printed: a title, a heading a column, rows of text."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def find_runs(paths: Iterable[Path]) -> list[Run]:
    """The runs in and below the paths, each once."""
    found: dict[Path, Run] = {}
    for path in paths:
        if not path.is_dir():
            raise ConfigError(f"{path}: there is no such folder")
        configs = sorted(path.rglob(".hydra/config.yaml"))
        if not configs:
            raise ConfigError(f"{path}: no run in it or below (a run has .hydra/config.yaml)")
        for config in configs:
            folder = config.parent.parent
            found.setdefault(folder.resolve(), read_run(folder))
    return list(found.values())


def read_run(folder: Path) -> Run:
    """One run; what is wrong with it is in its `problem`."""
    try:
        config = yaml.safe_load((folder / ".hydra" / "config.yaml").read_text(encoding="utf-8"))
        for name in ("method", "data", "model"):
            config[name]["name"]
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError) as error:
        return Run(folder, {}, {}, [], f"its config cannot be read ({type(error).__name__})")
    summary, rows = read_summary(folder), _rows(folder)
    return Run(folder, config, summary, rows, _problem(config, summary, rows))


def _rows(folder: Path) -> list[Row]:
    path = folder / "metrics.csv"
    return files.read_csv(path)[0] if path.is_file() else []


def _problem(config: Mapping[str, Any], summary: Mapping[str, Any], rows: Sequence[Row]) -> str:
    if summary.get("status") == "failed":
        return f"failed: {summary.get('error', 'no reason noted')}"
    done = max((r["round"] for r in rows), default=0)
    if not summary:
        return f"unfinished: round {done} of {config.get('rounds', '?')}"
    if not any(r["split"] == "test" for r in rows):
        return "metrics.csv has no evaluation on the test split"
    return ""


def _flatten(value: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, item in value.items():
        here = f"{path}{key}"
        flat |= _flatten(item, f"{here}.") if isinstance(item, Mapping) and item else {here: item}
    return flat


def group(runs: Sequence[Run]) -> list[Setting]:
    """Finished runs by setting, then by method and by whatever else was varied but the seed."""
    settings: dict[str, list[Run]] = {}
    for run in runs:
        if not run.problem:
            settings.setdefault(run.setting, []).append(run)
    return [_setting(name, many) for name, many in settings.items()]


def _setting(name: str, runs: Sequence[Run]) -> Setting:
    outside = [k for k in _varied(runs) if not k.startswith("method.")]
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        own = _varied([r for r in runs if r.method == run.method])
        inside = [k for k in own if k.startswith("method.")]
        groups.setdefault((run.method, _text(run, outside), _text(run, inside)), []).append(run)
    paper: Mapping[str, Any] = next((r.config["paper"] for r in runs if r.config.get("paper")), {})
    made = [
        Group(" ".join(filter(None, (method, condition, own))), method, many, condition)
        for (method, condition, own), many in sorted(groups.items())
    ]
    return Setting(name, made, paper)


def conditions(setting: Setting) -> list[tuple[str, list[Group]]]:
    """(what was varied outside of the methods, the groups that share it)."""
    found: dict[str, list[Group]] = {}
    for each in setting.groups:
        found.setdefault(each.condition, []).append(each)
    return list(found.items())


def _text(run: Run, keys: Sequence[str]) -> str:
    return " ".join(f"{k}={_show(run.flat.get(k))}" for k in keys)


def _varied(runs: Sequence[Run]) -> list[str]:
    """The keys whose values differ between the runs."""
    keys = dict.fromkeys(k for run in runs for k in run.flat)
    return [
        k
        for k in keys
        if k not in IGNORED
        and k.split(".")[0] not in IGNORED
        and len({_show(run.flat.get(k)) for run in runs}) > 1
    ]


def _show(value: Any) -> str:
    return "null" if value is None else str(value)
