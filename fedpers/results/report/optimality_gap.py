"""Tables of runs whose optimum is known: how far they got, and what that cost beside the theory."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedpers.results.plots.optimality_gap import GapSeries, gap_series
from fedpers.results.report.runs import SeedGroup, Setting
from fedpers.results.report.screen import ReportTable

TARGET = 1e-6  # of the gap at the start, unless the experiment's paper.target says otherwise
ENDS = ("distance", "estimation", "iterations", "communications", "seconds")  # of the last round
RATES = ("√κ", "iterations", "iterations/√κ",
         "communications", "√(L_w/μ) log 1/ε",
         "∇_w f_mi", "(n + √(n L_w/μ)) log 1/ε",
         "∇_β f_mi", "(n + √(n L_β/μ)) log 1/ε")  # fmt: skip


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
    title = (
        f"cost of F - F* = {eps:g} (F(start) - F*), and lower bounds without their constants; -: not reached"
    )
    groups = [g for g in setting.groups if all("mu" in r.summary.get("optimum", {}) for r in g.runs)]
    rows = [[g.name, *(_cell(many) for many in rates(g, eps).values())] for g in groups]
    return ReportTable(title, ["method", *RATES], rows)


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


def rates(group: SeedGroup, eps: float) -> dict[str, list[float]]:
    """{column of `RATES`: a value a run}; nan: ε not reached, or a bound of gradients that use no data."""
    each = [_rates(s, r.summary["optimum"], eps) for s, r in zip(_series(group), group.runs, strict=True)]
    return {name: [values[i] for values in each] for i, name in enumerate(RATES)}


def _rates(found: GapSeries, facts: Mapping[str, Any], eps: float) -> list[float]:
    """A run's values of `RATES`."""
    place, root = reached(found, facts, eps), math.sqrt((facts["L_w"] + facts["L_b"]) / facts["mu"])

    def cost(name: str) -> float:
        return math.nan if place is None or name not in found else float(found[name][place])

    values = [root, cost("iterations"), cost("iterations") / root]
    for name, bound in bounds(facts, eps).items():
        free = name not in found or not found[name][-1]  # gradients that touch no data
        values += [cost(name), math.nan if free else bound]
    return values


def _series(group: SeedGroup) -> list[GapSeries]:
    found = [gap_series(r.rows) for r in group.runs if "optimum" in r.summary]
    return [s for s in found if "suboptimality" in s]


def _at(found: GapSeries, name: str, t: int) -> float:
    here = np.flatnonzero(found["round"] <= t)
    return float(found[name][here[-1]]) if len(here) else math.nan


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _cell(values: Sequence[float]) -> str:
    return "-" if math.isnan(_mean(values)) else f"{_mean(values):.3g}"


def _show(values: Sequence[float], form: str) -> str:
    return f"{_mean(values):{form}}" if len(values) else "-"
