"""Tables of a report: mean and spread over seeds, costs, and the paper's numbers beside ours."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from fedpers.results.report.page import ReportTable
from fedpers.results.report.paper import paper_columns, paper_scale, paper_value
from fedpers.results.report.runs import SeedGroup, Setting

METRICS = {
    "accuracy": "accuracy",
    "accuracy_mean": "client mean",
    "worst_decile": "worst tenth",
    "loss": "loss",
}  # {column of metrics.csv: heading}


def spread(values: Sequence[float], scale: float = 1.0) -> str:
    """mean ± standard deviation (ddof=1) of the values that are not nan, times `scale`.

    >>> spread([0.5, 0.7], 100), spread([0.5]), spread([])
    ('60.00 ± 14.14', '0.5000', '-')
    """
    known = np.array([v for v in values if not math.isnan(v)])
    if not len(known):
        return "-"
    digits = 2 if scale == 100 else 4
    text = f"{scale * known.mean():.{digits}f}"
    return f"{text} ± {scale * known.std(ddof=1):.{digits}f}" if len(known) > 1 else text


def results(setting: Setting) -> ReportTable:
    """A row a group: metrics of the last round, and the accuracy of the best by validation."""
    shown = [m for m in METRICS if any(not math.isnan(v) for g in setting.groups for v in g.values(m))]
    percent = "accuracy" in shown
    scales = {m: 100.0 if percent and m != "loss" else 1.0 for m in shown}
    key = "accuracy" if percent else "loss"
    headings = [METRICS[m] + (" %" if scales[m] == 100 else "") for m in shown]
    rows = []
    for g in setting.groups:
        best = spread([r.best(key) for r in g.runs], scales[key])
        rows.append([g.name, _count(g), *(spread(g.values(m), scales[m]) for m in shown), best])
    title = (
        f"{setting.name}: test split after the last round; best: in the round chosen on the validation split"
    )
    return ReportTable(title, ["method", "n", *headings, f"best {key}"], rows)


def _count(group: SeedGroup) -> str:
    seeds = {run.config.get("seed") for run in group.runs}
    n = len(group.runs)
    return str(n) if len(seeds) == n else f"{n} ({len(seeds)} seeds)"


def costs(setting: Setting) -> ReportTable:
    """A row a group: what its runs cost, means over the runs."""
    columns = ("method", "rounds", "s/round", "MB up", "MB down", "gradients")
    return ReportTable("cost", columns, [[g.name, *_costs(g)] for g in setting.groups])


def _costs(group: SeedGroup) -> list[str]:
    def mean(of: Iterable[float]) -> float:
        return float(np.mean(list(of)))

    summaries = [r.summary for r in group.runs]
    done = mean(s.get("rounds_done", 0) for s in summaries)
    seconds = mean(s.get("round_seconds", 0.0) for s in summaries) / max(done, 1)
    megabytes = [mean(s.get("bytes", {}).get(way, 0) for s in summaries) / 1e6 for way in ("up", "down")]
    gradients = mean(s.get("gradient_evals", 0) for s in summaries)
    return [f"{done:g}", *(f"{v:.3g}" for v in (seconds, *megabytes, gradients))]


def beside_paper(setting: Setting) -> list[ReportTable]:
    """Ours beside the paper's; empty unless the experiment names the paper's values."""
    paper = setting.paper
    if not paper.get("values"):
        return []
    columns = ("method", "column", "n", "ours", "paper", "ours - paper")
    title = ", ".join(str(paper[k]) for k in ("title", "table") if paper.get(k))
    rows = [
        _beside_paper(g, column, metric)
        for g in setting.groups
        for column, metric in paper_columns(g.paper).items()
    ]
    return [ReportTable(f"Beside the paper: {title}", columns, rows)]


def _beside_paper(group: SeedGroup, column: str, metric: str) -> list[str]:
    theirs, scale = paper_value(group.paper, group.method, column), paper_scale(group.paper)
    ours = group.values(metric, int(group.paper.get("last", 1)))
    cells = [group.name, column, str(len(ours)), spread(ours, scale)]
    if theirs is None:
        return [*cells, "-", "-"]
    mean, std = theirs
    printed = f"{mean:g}" if std is None else f"{mean:g} ± {std:g}"
    return [*cells, printed, f"{scale * float(np.mean(ours)) - mean:+.2f}"]
