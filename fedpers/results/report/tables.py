"""Tables of a report: mean and spread over seeds beside the paper's numbers, and what runs cost."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedpers.results.report.paper import paper_columns, paper_value
from fedpers.results.report.runs import Group, Setting, Table


def spread(values: Sequence[float], scale: float = 1.0) -> str:
    """mean ± standard deviation (ddof=1); only the mean where there is one value."""
    known = np.array([v for v in values if not math.isnan(v)])
    if not len(known):
        return "-"
    digits = 2 if scale == 100 else 4
    text = f"{scale * known.mean():.{digits}f}"
    return f"{text} ± {scale * known.std(ddof=1):.{digits}f}" if len(known) > 1 else text


def cost_table(setting: Setting) -> Table:
    """What the runs cost: means over the runs of a group."""
    return Table(
        "cost",
        ("method", "rounds", "s/round", "MB up", "MB down", "gradients"),
        [[g.name, *_cost(g)] for g in setting.groups],
    )


def count(found: Group) -> str:
    """How many runs; how many seeds where that is another number."""
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
