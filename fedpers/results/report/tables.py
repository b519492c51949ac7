"""Tables of a report: mean and spread over seeds, costs, and the paper's numbers beside ours."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedpers.results.report.paired_tests import Difference
from fedpers.results.report.paper import paper_columns, paper_scale, paper_value
from fedpers.results.report.runs import SeedGroup, Setting
from fedpers.results.report.screen import ReportTable


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


def signed(x: float, scale: float = 1.0) -> str:
    """A difference with its sign, times `scale`.

    >>> signed(-0.015, 100)
    '−1.50'
    """
    return f"{scale * x:+.{2 if scale == 100 else 4}f}".replace("-", "\N{MINUS SIGN}")


def interval(d: Difference, scale: float = 1.0) -> str:
    """Both ends of a difference's interval; so few seeds that the test rejects nothing give none."""
    if math.isinf(d.low) and math.isinf(d.high):
        return "no interval"
    return " … ".join(signed(x, scale) for x in (d.low, d.high))


def count(group: SeedGroup) -> str:
    """How many runs; how many seeds where that is another number."""
    seeds = {run.config.get("seed") for run in group.runs}
    n = len(group.runs)
    return str(n) if len(seeds) == n else f"{n} ({len(seeds)} seeds)"


def costs(setting: Setting) -> ReportTable:
    """A row a group: what its runs cost, means over the runs."""
    columns = ["method", "rounds", "s/round", "warm-up s", "MB up", "MB down", "gradients", "GFLOP"]
    rows = [[g.name, *_costs(g)] for g in setting.groups]
    for name, of, text in MORE:
        told = [[of(r.summary) for r in g.runs] for g in setting.groups]
        if all(math.isnan(v) for values in told for v in values):
            continue
        columns.append(name)
        for row, values in zip(rows, told, strict=True):
            row.append(text(values).replace("nan", "-"))
    return ReportTable("cost", tuple(columns), rows)


def _a_round(summary: Mapping[str, Any], name: str) -> float:
    return float(summary.get(name, math.nan)) / max(summary.get("rounds_done", 1), 1)


# Columns of what only some runs have: their name, a run's number (nan: it has none), the numbers' text.
MORE: tuple[tuple[str, Callable[[Mapping[str, Any]], float], Callable[[list[float]], str]], ...] = (
    # known of runs with a process of their own
    ("peak MB", lambda s: float(s.get("peak_memory_mb") or math.nan), lambda v: f"{np.fmax.reduce(v):.0f}"),
    # with privacy=dp: the most that a run spent, unknown if one is
    ("epsilon", lambda s: float(s.get("privacy", {}).get("epsilon", math.nan)), lambda v: f"{np.max(v):.4g}"),
    # on simulated devices: replies that were left out, clients that trained for less
    ("late a round", lambda s: _a_round(s, "late"), lambda v: f"{np.mean(v):.3g}"),
    ("partial a round", lambda s: _a_round(s, "partial"), lambda v: f"{np.mean(v):.3g}"),
)


def _costs(group: SeedGroup) -> list[str]:
    def mean(of: Iterable[float]) -> float:
        return float(np.mean(list(of)))

    summaries = [r.summary for r in group.runs]
    done = mean(s.get("rounds_done", 0) for s in summaries)
    seconds = [mean(s.get(k) or 0.0 for s in summaries) for k in ("median_round_seconds", "warm_up_seconds")]
    megabytes = [mean(s.get("bytes", {}).get(way, 0) for s in summaries) / 1e6 for way in ("up", "down")]
    gradients = mean(s.get("gradient_evals", 0) for s in summaries)
    operations = mean(s.get("gflops", math.nan) for s in summaries)  # unknown of runs of older versions
    known = "-" if math.isnan(operations) else f"{operations:.3g}"
    return [f"{done:g}", *(f"{v:.3g}" for v in (*seconds, *megabytes, gradients)), known]


def tuned(setting: Setting) -> list[ReportTable]:
    """A row a search that chose the settings of these runs; empty without any."""
    rows = [[g.name, *_search(found)] for g in setting.groups if (found := g.runs[0].search)]
    columns = ("method", "trials", "valid at first", "valid of the best", "found")
    return [ReportTable("search on validation data, with another seed", columns, rows)] if rows else []


def _search(found: Mapping[str, Any]) -> list[str]:
    scores = [t["score"] for t in found["trials"] if t["score"] is not None]
    first = found["trials"][0]["score"]
    values = "  ".join(f"{k}={f'{v:.4g}' if isinstance(v, float) else v}" for k, v in found["found"].items())
    return [str(len(found["trials"])), "-" if first is None else f"{first:.4f}", f"{max(scores):.4f}", values]


def unseen(setting: Setting) -> list[ReportTable]:
    """A row a group: clients that never trained, before and after their adaptation; empty without any."""
    rows = [[g.name, *_unseen(g, new)] for g in setting.groups if (new := _new_clients(g))]
    columns = ("method", "clients", "epochs", "before adaptation", "after adaptation")
    return [ReportTable("new clients, which never trained", columns, rows)] if rows else []


def _new_clients(group: SeedGroup) -> list[dict[str, Any]]:
    return [r.summary["new_clients"] for r in group.runs if r.summary.get("new_clients")]


def _unseen(group: SeedGroup, new: list[dict[str, Any]]) -> list[str]:
    def score(when: str) -> str:
        found = [n[when] or {} for n in new]
        accurate = [f["accuracy"] for f in found if f.get("accuracy") is not None]
        return spread(accurate, 100.0) if accurate else spread([f["loss"] for f in found if "loss" in f])

    return [str(new[0].get("count", "?")), str(new[0].get("epochs", 0)), score("before"), score("after")]


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
