"""Tables of runs whose optimum is known: how far they got, and what that cost beside the theory."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpers.results.plots.optimality_gap import table

if TYPE_CHECKING:
    from fedpers.results.report.runs import Group, Setting, Table

TARGET = 1e-6  # of the gap at the start, unless the experiment's paper.target says otherwise
ENDS = ("distance", "estimation", "iterations", "communications", "seconds")  # of the last round
Found = Mapping[str, np.ndarray]


def gap_rows(setting: "Setting") -> tuple[list[str], list[list[str]]]:
    """(columns, a row a group): F - F* at three moments, distance and costs at the end."""
    groups = [(g, tables) for g in setting.groups if (tables := _tables(g))]
    if not groups:
        return [], []
    last = max(int(t["round"][-1]) for _, tables in groups for t in tables)
    at = sorted({max(1, last // 100), max(1, last // 10), last})
    ends = [c for c in ENDS if any(c in t for _, tables in groups for t in tables)]
    columns = ["method", "F*", *(f"F - F*, round {t}" for t in at), *ends]
    return columns, [
        [
            g.name,
            f"{_mean([r.summary['optimum']['objective'] for r in g.runs]):.6g}",
            *(_show([_at(t, "suboptimality", r) for t in tables], ".1e") for r in at),
            *(_show([t[c][-1] for t in tables if c in t], ".3g") for c in ends),
        ]
        for g, tables in groups
    ]


def rate_rows(setting: "Setting") -> tuple[list[str], list[list[str]]]:
    """(columns, a row a group): costs of a relative accuracy ε beside Theorem 6's lower bounds.

    With κ = (L_w + L_β)/μ and n samples a client: √(L_w/μ) log 1/ε communications,
    (n + √(n L/μ)) log 1/ε sample gradients in each block, where constants are left out.
    """
    groups = [g for g in setting.groups if all("mu" in r.summary.get("optimum", {}) for r in g.runs)]
    columns = [
        "method",
        "√κ",
        "iterations",
        "iterations/√κ",
        "communications",
        "√(L_w/μ) log 1/ε",
        "∇_w f_mi",
        "(n + √(n L_w/μ)) log 1/ε",
        "∇_β f_mi",
        "(n + √(n L_β/μ)) log 1/ε",
    ]
    return columns, [_rates(g, target(setting)) for g in groups]


def tables(setting: "Setting", make: "type[Table]") -> list["Table"]:
    """Both, where there is something to show."""
    titles = (
        "distance to the optimum (means over the runs)",
        f"cost of F - F* = {target(setting):g} (F(start) - F*), and lower bounds without their "
        "constants; -: not reached",
    )
    made = zip(titles, (gap_rows(setting), rate_rows(setting)), strict=True)
    return [make(title, columns, rows) for title, (columns, rows) in made if rows]


def target(setting: "Setting") -> float:
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


def reached(found: Found, facts: Mapping[str, float], eps: float) -> int | None:
    """The place in `found` from which on F - F* stays within ε of the start's; None: nowhere."""
    above = found["suboptimality"] > eps * (facts["start"] - facts["objective"])
    place = int(np.flatnonzero(above)[-1]) + 1 if above.any() else 0
    return place if place < len(above) else None


def _rates(group: "Group", eps: float) -> list[str]:
    facts: list[Mapping[str, Any]] = [r.summary["optimum"] for r in group.runs]
    places = [(t, reached(t, f, eps)) for t, f in zip(_tables(group), facts, strict=True)]
    done = len(places) == len(facts) and all(i is not None for _, i in places)

    def cost(name: str) -> float:
        return _mean([float(t[name][i]) for t, i in places if name in t]) if done else math.nan

    root = _mean([math.sqrt((f["L_w"] + f["L_b"]) / f["mu"]) for f in facts])
    least = {k: _mean([bounds(f, eps)[k] for f in facts]) for k in bounds(facts[0], eps)}
    cells = [root, cost("iterations"), cost("iterations") / root]
    for name, bound in least.items():
        free = not any(t[name][-1] for t, _ in places if name in t)  # gradients that touch no data
        cells += [cost(name), math.nan if free else bound]
    return [group.name, *("-" if math.isnan(v) else f"{v:.3g}" for v in cells)]


def _tables(group: "Group") -> list[Found]:
    found = [table(r.rows) for r in group.runs if "optimum" in r.summary]
    return [t for t in found if "suboptimality" in t]


def _at(found: Found, name: str, t: int) -> float:
    here = np.flatnonzero(found["round"] <= t)
    return float(found[name][here[-1]]) if len(here) else math.nan


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _show(values: Sequence[float], form: str) -> str:
    return f"{_mean(values):{form}}" if len(values) else "-"
