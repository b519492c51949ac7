"""The ranking as it is shown, on a page, as text and as plain numbers."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedpers.results.report import statistics
from fedpers.results.report.paired_tests import NO_DIFFERENCE, Difference, ranks, signs
from fedpers.results.report.screen import ReportTable
from fedpers.results.report.standings import REFERENCES, Comparison, Standing
from fedpers.results.report.tables import count, interval, signed, spread

LATER = ("spread over clients", "worst tenth %", "clients hurt", "runs")  # what a narrow screen can spare


@dataclass(frozen=True)
class Cell:
    """A cell of the ranking: its text, a smaller line below, a class of colour, places on a track in %."""

    text: str
    detail: str = ""
    tone: str = ""
    ticks: Sequence[str] = ()
    dot: str = ""

    @property
    def line(self) -> str:
        """All of it in one line of text."""
        return f"{self.text} ({self.detail})" if self.detail else self.text


def ranking(comparison: Comparison, colours: Sequence[str], scale: float) -> dict[str, Any]:
    """Headings (with whether the largest comes first), a row a standing, and both as a table of text."""
    low, high = _ends(v for s in comparison.rows for v in s.scores.values())
    unit = " %" if scale == 100 else ""
    references = [r for r in REFERENCES if comparison.reference(r) and len(comparison.rows) > 1]
    columns = [(f"{comparison.metric}{unit}", comparison.larger_is_better)]
    columns += [(f"vs {r}", comparison.larger_is_better) for r in references]
    if scale == 100:
        columns += [("clients hurt", False)] if comparison.reference("local") else []
        columns += [("worst tenth %", True), ("spread over clients", False)]
    columns += [("runs", True)]

    def cells(s: Standing) -> list[Cell]:
        values = list(s.scores.values())
        ticks = [_place(v, low, high) for v in values]
        made = [Cell(spread(values, scale), ticks=ticks, dot=_place(s.score, low, high))]
        made += [_difference(s, r, comparison, scale) for r in references]
        if scale == 100:
            made += (
                [Cell(f"{s.clients.hurt:.0%}" if s.clients else "-")] if comparison.reference("local") else []
            )
            made += [
                Cell(spread(s.group.values("worst_decile"), scale)),
                Cell("-" if math.isnan(s.client_spread) else f"{scale * s.client_spread:.2f}"),
            ]
        return [*made, Cell(count(s.group))]

    rows = [
        {"rank": s.rank, "name": s.name, "colour": c, "cells": cells(s)}
        for s, c in zip(comparison.rows, colours, strict=True)
    ]
    names = ["#", "method", *(name for name, _ in columns)]
    texts = [[str(s.rank), s.name, *(c.line for c in cells(s))] for s in comparison.rows]
    table = ReportTable(comparison.name, names, texts, LATER)
    return {"columns": columns, "standings": rows, "ranking": table}


def pairwise(comparison: Comparison) -> list[ReportTable]:
    """Every other method beside the first by three tests; empty of one seed or one method."""
    first, *others = comparison.rows
    rows = [_three(comparison, s, len(others)) for s in others]
    columns = ["", "seeds", "mean gap", "95 % interval", "p (t)", "won", "p (signs)"]
    columns += ["median gap", "95 % interval", "p (ranks)"]
    title = f"{first.name} minus each other method, paired by seed; tests by t, by signs, by signed ranks"
    known = [row for row in rows if row]
    return [ReportTable(title, columns, known)] if known else []


def _three(comparison: Comparison, other: Standing, family: int) -> list[str]:
    found = statistics.gaps(comparison.rows[0].scores, other.scores)
    scale, sign = (100.0, 1) if comparison.larger_is_better else (1.0, -1)
    if len(found) < 2 or not np.isfinite(found).all():
        return []
    t, by_sign, by_rank = statistics.difference_of(found, family), signs(found, family), ranks(found, family)
    student = [signed(float(found.mean()), scale), *_shown(t, scale)] if t.test == "t" else ["-", "-", "-"]
    won = f"{int((sign * found > 0).sum())} of {len(found)}"
    rest = [signed(by_rank.gap, scale), *_shown(by_rank, scale)]
    return [other.name, str(len(found)), *student, won, f"{by_sign.p:.2g}", *rest]


def _shown(d: Difference, scale: float) -> tuple[str, str]:
    return interval(d, scale), f"{d.p:.2g}"


def row(s: Standing) -> dict[str, Any]:
    """A standing as plain numbers, for CSV."""
    found = {
        "rank": s.rank,
        "method": s.group.method,
        "name": s.name,
        "runs": len(s.group.runs),
        "mean": s.score,
    }
    found["std"] = float(np.std(list(s.scores.values()), ddof=1)) if len(s.scores) > 1 else math.nan
    for reference in REFERENCES:
        d = s.to.get(reference) or NO_DIFFERENCE
        found |= {f"{reference}_{k}": v for k, v in asdict(d).items()}
    found |= {k: getattr(s.clients, k) if s.clients else math.nan for k in ("gained", "hurt")}
    gain = s.clients.gain if s.clients else NO_DIFFERENCE
    found |= {f"client_{k}": v for k, v in asdict(gain).items()}
    return found | {"worst_decile": s.worst_decile, "client_std": s.client_spread}


def _difference(s: Standing, reference: str, comparison: Comparison, scale: float) -> Cell:
    d = s.to.get(reference)
    if d is None:
        return Cell("-")
    text = signed(d.gap, scale)
    if math.isnan(d.p):
        return Cell(text, "one seed")
    better = (d.gap > 0) == comparison.larger_is_better
    detail = f"{interval(d, scale)}, p {d.p:.2g}" + (" by signs" if d.test == "signs" else "")
    return Cell(text, detail, ("better" if better else "worse") if d.sure else "")


def _ends(values: Iterable[float]) -> tuple[float, float]:
    found = list(values)
    return min(found), max(found)


def _place(x: float, low: float, high: float) -> str:
    """Per cent of the track's width, with room for the dot."""
    return f"{4 + 92 * (x - low) / (high - low):.1f}" if high > low else "50"
