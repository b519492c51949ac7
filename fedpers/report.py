"""`fedpers report`: runs -> mean and spread over seeds, beside the paper's numbers."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from fedpers import files, report_gap, report_page
from fedpers.errors import ConfigError
from fedpers.files import Row
from fedpers.paper import paper_columns, paper_value
from fedpers.plots import series
from fedpers.recorder import read_summary

IGNORED = ("seed", "out", "resume", "device", "checkpoint_every", "optimum", "paper", "data.root")
METRICS = {"accuracy": "accuracy", "accuracy_mean": "client mean", "worst_decile": "worst tenth",
           "loss": "loss"}


@dataclass(frozen=True)
class Run:
    """One run directory."""

    path: Path
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    rows: Sequence[Row]
    problem: str = ""            # why it does not count; empty if it is finished

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


def report(paths: Sequence[Path], out: Path | None = None) -> Path:
    """Print the tables and write report.md and report.html; returns the latter's path.

    Raises:
        ConfigError: there is no run in a path.
    """
    runs = find_runs(paths)
    folder = out or (paths[0] if len(paths) == 1 else Path.cwd())
    settings = group(runs)
    tables = {s.name: [results_table(s), *paper_tables(s), *report_gap.tables(s, Table), cost_table(s)]
              for s in settings}
    left_out = Table("runs that are not counted", ("run", "why"),
                     [(str(r.path), r.problem) for r in runs if r.problem])
    return report_page.write(folder, settings, tables, left_out)


# ---- reading ------------------------------------------------------------------------------------

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


# ---- grouping -----------------------------------------------------------------------------------

def group(runs: Sequence[Run]) -> list[Setting]:
    """Finished runs by setting, then by method and by whatever else was varied but the seed."""
    settings: dict[str, list[Run]] = {}
    for run in runs:
        if not run.problem:
            settings.setdefault(run.setting, []).append(run)
    return [_setting(name, many) for name, many in settings.items()]


def _setting(name: str, runs: Sequence[Run]) -> Setting:
    varied = _varied(runs)
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        own = _varied([r for r in runs if r.method == run.method])
        keys = [k for k in varied if not k.startswith("method.")]
        keys += [k for k in own if k.startswith("method.")]
        text = " ".join(f"{k}={_show(run.flat.get(k))}" for k in keys)
        groups.setdefault((run.method, text), []).append(run)
    paper: Mapping[str, Any] = next((r.config["paper"] for r in runs if r.config.get("paper")), {})
    return Setting(name, [Group(f"{method} {text}".strip(), method, many)
                          for (method, text), many in sorted(groups.items())], paper)


def _varied(runs: Sequence[Run]) -> list[str]:
    """The keys whose values differ between the runs."""
    keys = dict.fromkeys(k for run in runs for k in run.flat)
    return [k for k in keys if k not in IGNORED and k.split(".")[0] not in IGNORED
            and len({_show(run.flat.get(k)) for run in runs}) > 1]


def _show(value: Any) -> str:
    return "null" if value is None else str(value)


# ---- tables -------------------------------------------------------------------------------------

def spread(values: Sequence[float], scale: float = 1.0) -> str:
    """mean ± standard deviation (ddof=1); only the mean where there is one value."""
    known = np.array([v for v in values if not math.isnan(v)])
    if not len(known):
        return "-"
    digits = 2 if scale == 100 else 4
    text = f"{scale * known.mean():.{digits}f}"
    return f"{text} ± {scale * known.std(ddof=1):.{digits}f}" if len(known) > 1 else text


def results_table(setting: Setting) -> Table:
    """A row a group: metrics of the last round, and the accuracy of the best by validation."""
    everything = [run for g in setting.groups for run in g.runs]
    shown = [m for m in METRICS if any(not math.isnan(r.value(m)) for r in everything)]
    percent = "accuracy" in shown
    scales = {m: 100.0 if percent and m != "loss" else 1.0 for m in shown}
    key = "accuracy" if percent else "loss"
    columns = ["method", "n", *(METRICS[m] + (" %" if scales[m] == 100 else "") for m in shown),
               f"best {key}"]
    rows = [[g.name, _count(g), *(spread(g.values(m), scales[m]) for m in shown),
             spread([r.best(key) for r in g.runs], scales[key])] for g in setting.groups]
    return Table(f"{setting.name}: test split after the last round; best: in the round chosen on "
                 f"the validation split", columns, rows)


def cost_table(setting: Setting) -> Table:
    """What the runs cost: means over the runs of a group."""
    return Table("cost", ("method", "rounds", "s/round", "MB up", "MB down", "gradients"),
                 [[g.name, *_cost(g)] for g in setting.groups])


def _count(found: Group) -> str:
    seeds = {run.config.get("seed") for run in found.runs}
    n = len(found.runs)
    return str(n) if len(seeds) == n else f"{n} ({len(seeds)} seeds)"


def _cost(found: Group) -> list[str]:
    def mean(of: Iterable[float]) -> float:
        return float(np.mean(list(of)))

    done = mean(r.summary.get("rounds_done", 0) for r in found.runs)
    seconds = mean(r.summary.get("round_seconds", 0.0) for r in found.runs) / max(done, 1)
    sent = [mean(r.summary.get("bytes", {}).get(way, 0) for r in found.runs) / 1e6
            for way in ("up", "down")]
    work = mean(r.summary.get("gradient_evals", 0) for r in found.runs)
    return [f"{done:g}", f"{seconds:.3g}", *(f"{s:.3g}" for s in sent), f"{work:.3g}"]


def paper_tables(setting: Setting) -> list[Table]:
    """Ours beside the paper's; empty unless the experiment names the paper's values."""
    paper = setting.paper
    if not paper.get("values"):
        return []
    rows = [row for g in setting.groups for row in _paper_rows(g)]
    title = ", ".join(str(paper[k]) for k in ("title", "table") if paper.get(k))
    return [Table(f"Beside the paper: {title}",
                  ("method", "column", "n", "ours", "paper", "ours - paper"), rows)]


def _paper_rows(found: Group) -> list[list[str]]:
    paper = found.runs[0].config.get("paper") or {}
    return [_paper_row(found, paper, column, metric) for column, metric in paper_columns(paper).items()]


def _paper_row(found: Group, paper: Mapping[str, Any], column: str, metric: str) -> list[str]:
    theirs = paper_value(paper, found.method, column)
    factor = 100.0 if paper.get("percent") else 1.0
    ours = found.values(metric, int(paper.get("last", 1)))
    cells = [found.name, column, str(len(ours)), spread(ours, factor)]
    if theirs is None:
        return [*cells, "-", "-"]
    mean, std = theirs
    printed = f"{mean:g}" if std is None else f"{mean:g} ± {std:g}"
    return [*cells, printed, f"{factor * float(np.mean(ours)) - mean:+.2f}"]
