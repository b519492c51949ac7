"""Tables on a screen: rank and name stay, what a narrow one cannot show is named."""

import io

import pytest
from rich.console import Console

from fedpers.results.report.ranking import LATER
from fedpers.results.report.screen import ReportTable, _print

COLUMNS = ["#", "method", "accuracy %", "vs local", "vs fedavg", *reversed(LATER)]
GAP = "+4.01 (+3.20 to +4.80, p 0.001)"
ROWS = [
    ["1", "fedsoft", "97.12 ± 0.30", GAP, GAP, "5", "3%", "81.00 ± 1.00", "6.10"],
    ["2", "local, method.local.lr=0.05", "93.12 ± 0.30", "-", GAP, "5", "0%", "71.00 ± 1.00", "9.10"],
]


@pytest.mark.parametrize("width", [60, 80, 100, 120, 144, 160, 200])
def test_rank_and_method_stay_and_what_is_left_out_is_said(width: int) -> None:
    console = Console(width=width, file=io.StringIO())
    _print(console, ReportTable("digits", COLUMNS, ROWS, LATER), 2)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    head, first, *rest = text.splitlines()[1:]
    assert head.split()[:4] == ["#", "method", "accuracy", "%"]
    assert first.split()[:5] == ["1", "fedsoft", "97.12", "±", "0.30"]
    assert any(line.split()[:2] == ["2", "local,"] for line in rest)
    assert max(map(len, text.splitlines())) <= width
    said = " ".join(" ".join(rest).split())
    for column in COLUMNS:
        assert (column in head) != (column in said.partition("report.html: ")[2])


def test_a_wide_screen_has_all() -> None:
    console = Console(width=200, file=io.StringIO())
    _print(console, ReportTable("digits", COLUMNS, ROWS, LATER), 2)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert "report.html" not in text and all(c in text for c in COLUMNS)
