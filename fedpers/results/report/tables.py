"""`fedpers report`: runs -> mean and spread over seeds, beside the paper's numbers."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedpers.results.report import optimality_gap, page
from fedpers.results.report.paper import paper_columns, paper_value
from fedpers.results.report.runs import Group, Setting, Table, find_runs, group

METRICS = {
    "accuracy": "accuracy",
    "accuracy_mean": "client mean",
    "worst_decile": "worst tenth",
    "loss": "loss",
}


def report(paths: Sequence[Path], out: Path | None = None) -> Path:
    """Print the tables and write report.md and report.html; returns the latter's path.

    Raises:
        ConfigError: there is no run in a path.
    """
    runs = find_runs(paths)
    folder = out or (paths[0] if len(paths) == 1 else Path.cwd())
    settings = group(runs)
    tables = {
        s.name: [results_table(s), *paper_tables(s), *optimality_gap.tables(s, Table), cost_table(s)]
        for s in settings
    }
    left_out = Table(
        "runs that are not counted", ("run", "why"), [(str(r.path), r.problem) for r in runs if r.problem]
    )
    return page.write(folder, settings, tables, left_out)


# ---- reading ------------------------------------------------------------------------------------


# ---- grouping -----------------------------------------------------------------------------------


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
    columns = [
        "method",
        "n",
        *(METRICS[m] + (" %" if scales[m] == 100 else "") for m in shown),
        f"best {key}",
    ]
    rows = [
        [
            g.name,
            _count(g),
            *(spread(g.values(m), scales[m]) for m in shown),
            spread([r.best(key) for r in g.runs], scales[key]),
        ]
        for g in setting.groups
    ]
    return Table(
        f"{setting.name}: test split after the last round; best: in the round chosen on the validation split",
        columns,
        rows,
    )


def cost_table(setting: Setting) -> Table:
    """What the runs cost: means over the runs of a group."""
    return Table(
        "cost",
        ("method", "rounds", "s/round", "MB up", "MB down", "gradients"),
        [[g.name, *_cost(g)] for g in setting.groups],
    )


def _count(found: Group) -> str:
    seeds = {run.config.get("seed") for run in found.runs}
    n = len(found.runs)
    return str(n) if len(seeds) == n else f"{n} ({len(seeds)} seeds)"


def _cost(found: Group) -> list[str]:
    def mean(of: Iterable[float]) -> float:
        return float(np.mean(list(of)))

    done = mean(r.summary.get("rounds_done", 0) for r in found.runs)
    seconds = mean(r.summary.get("round_seconds", 0.0) for r in found.runs) / max(done, 1)
    sent = [mean(r.summary.get("bytes", {}).get(way, 0) for r in found.runs) / 1e6 for way in ("up", "down")]
    work = mean(r.summary.get("gradient_evals", 0) for r in found.runs)
    return [f"{done:g}", f"{seconds:.3g}", *(f"{s:.3g}" for s in sent), f"{work:.3g}"]


def paper_tables(setting: Setting) -> list[Table]:
    """Ours beside the paper's; empty unless the experiment names the paper's values."""
    paper = setting.paper
    if not paper.get("values"):
        return []
    rows = [row for g in setting.groups for row in _paper_rows(g)]
    title = ", ".join(str(paper[k]) for k in ("title", "table") if paper.get(k))
    return [
        Table(f"Beside the paper: {title}", ("method", "column", "n", "ours", "paper", "ours - paper"), rows)
    ]


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
