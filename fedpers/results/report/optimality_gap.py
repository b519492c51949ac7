"""Tables of runs whose optimum is known: how far they got, and what that cost beside the theory."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedpers.results.plots.optimality_gap import GapSeries, gap_series
from fedpers.results.report.page import ReportTable
from fedpers.results.report.runs import SeedGroup, Setting

TARGET = 1e-6  # of the gap at the start, unless the experiment's paper.target says otherwise
ENDS = ("distance", "estimation", "iterations", "communications", "seconds")  # of the last round


def tables(setting: Setting) -> list[ReportTable]:
    """Gaps, and costs beside the theory, each where there is something to show."""
    made = [gap_table(setting), rate_table(setting)]
    return [table for table in made if table.rows]


def gap_table(setting: Setting) -> ReportTable:
    """A row a group: F - F* at three moments, distances and costs at the end."""
    groups = [(g, many) for g in setting.groups if (many := _series(g))]
    last = max((int(s["round"][-1]) for _, many in groups for s in many), default=1)
    at = sorted({max(1, last // 100), max(1, last // 10), last})
    ends = [c for c in ENDS if any(c in s for _, many in groups for s in many)]
    columns = ["method", "F*", *(f"F - F*, round {t}" for t in at), *ends]
    rows = []
    for g, many in groups:
        optimum = f"{_mean([r.summary['optimum']['objective'] for r in g.runs]):.6g}"
        gaps = [_show([_at(s, "suboptimality", t) for s in many], ".1e") for t in at]
        rows.append(
            [g.name, optimum, *gaps, *(_show([s[c][-1] for s in many if c in s], ".3g") for c in ends)]
        )
    return ReportTable("distance to the optimum (means over the runs)", columns, rows)


def rate_table(setting: Setting) -> ReportTable:
    """A row a group: costs of a relative accuracy ε beside the lower bounds.

    With κ = (L_w + L_β)/μ and n samples a client: √(L_w/μ) log 1/ε communications,
    (n + √(n L/μ)) log 1/ε sample gradients in each block, where constants are left out.
    Source: Hanzely, Zhao, Kolar, arXiv 2102.09743, Theorem 6.
    """
    eps = target(setting)
    columns = ["method", "√κ", "iterations", "iterations/√κ",
               "communications", "√(L_w/μ) log 1/ε",
               "∇_w f_mi", "(n + √(n L_w/μ)) log 1/ε",
               "∇_β f_mi", "(n + √(n L_β/μ)) log 1/ε"]  # fmt: skip
    title = (
        f"cost of F - F* = {eps:g} (F(start) - F*), and lower bounds without their constants; -: not reached"
    )
    groups = [g for g in setting.groups if all("mu" in r.summary.get("optimum", {}) for r in g.runs)]
    return ReportTable(title, columns, [_rates(g, eps) for g in groups])


def target(setting: Setting) -> float:
    """ε: the accuracy relative to the start."""
    return float(setting.paper.get("target", TARGET))


def bounds(c: Mapping[str, float], eps: float) -> dict[str, float]:
    """Lower bounds without constants, from `optimum` of a summary.json, by the column they bound."""
    n, log = c["samples"], math.log(1 / eps)
    return {
        "communications": math.sqrt(c["L_w"] / c["mu"]) * log,
        "w_sample_grads": (n + math.sqrt(n * c["cL_w"] / c["mu"])) * log,
        "beta_sample_grads": (n + math.sqrt(n * c["cL_b"] / c["mu"])) * log,
    }


def reached(found: GapSeries, facts: Mapping[str, float], eps: float) -> int | None:
    """The place in `found` from which on F - F* stays within ε of the start's; None: nowhere."""
    above = found["suboptimality"] > eps * (facts["start"] - facts["objective"])
    place = int(np.flatnonzero(above)[-1]) + 1 if above.any() else 0
    return place if place < len(above) else None


def _rates(group: SeedGroup, eps: float) -> list[str]:
    facts: list[Mapping[str, Any]] = [r.summary["optimum"] for r in group.runs]
    places = [(s, reached(s, f, eps)) for s, f in zip(_series(group), facts, strict=True)]
    done = all(i is not None for _, i in places)

    def cost(name: str) -> float:
        return _mean([float(s[name][i]) for s, i in places if name in s]) if done else math.nan

    root = _mean([math.sqrt((f["L_w"] + f["L_b"]) / f["mu"]) for f in facts])
    least = {k: _mean([bounds(f, eps)[k] for f in facts]) for k in bounds(facts[0], eps)}
    cells = [root, cost("iterations"), cost("iterations") / root]
    for name, bound in least.items():
        free = not any(s[name][-1] for s, _ in places if name in s)  # gradients that touch no data
        cells += [cost(name), math.nan if free else bound]
    return [group.name, *("-" if math.isnan(v) else f"{v:.3g}" for v in cells)]


def _series(group: SeedGroup) -> list[GapSeries]:
    found = [gap_series(r.rows) for r in group.runs if "optimum" in r.summary]
    return [s for s in found if "suboptimality" in s]


def _at(found: GapSeries, name: str, t: int) -> float:
    here = np.flatnonzero(found["round"] <= t)
    return float(found[name][here[-1]]) if len(here) else math.nan


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _show(values: Sequence[float], form: str) -> str:
    return f"{_mean(values):{form}}" if len(values) else "-"
