"""A report on the screen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

FOLDED = 24  # characters of a method's name that are shown in one line
WIDE = 160  # characters a line where the screen is a file, which has no edge


@dataclass(frozen=True)
class ReportTable:
    """Text in rows and columns; numbers from the second column on."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    later: Sequence[str] = ()  # the columns that a narrow screen is without, the first of them first


def show(comparisons: Sequence[Mapping[str, Any]], left_out: ReportTable) -> None:
    """Verdict and tables of each comparison, then the runs that do not count."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDE)  # a file has no edge
    for c in comparisons:
        said = f"{c['name']}: {c['verdict']}" if len(comparisons) > 1 else c["verdict"]
        console.print(f"[bold]{escape(said)}[/]", escape(c["reason"]), "", sep="\n", highlight=False)
        for warning in c["warnings"]:
            console.print(f"[yellow]{escape(warning)}[/]", "", sep="\n", highlight=False)
        for table in [c["ranking"], *c["tables"]]:
            _print(console, table, words=2 if table is c["ranking"] else 1)
    if left_out.rows:
        console.print(_table(left_out, words=len(left_out.columns)), "", highlight=False)


def _print(console: Console, table: ReportTable, words: int) -> None:
    """The table in as many columns as the screen has room for; which are left out is said below."""
    spared: list[str] = []
    rest = [*table.later, *reversed([c for c in table.columns[words + 1 :] if c not in table.later])]
    shown = table
    while rest and _width(shown, words) > console.width:
        if (name := rest.pop(0)) in shown.columns:
            spared.append(name)
            shown = _without(shown, name)
    console.print(_table(shown, words), highlight=False)
    if spared:
        text = f"not shown on {console.width} columns, but in report.html: {', '.join(spared)}"
        console.print(f"[dim]{escape(text)}[/]", highlight=False)
    console.print()


def _width(table: ReportTable, words: int) -> int:
    """Characters that a table takes; words may be folded, but not below `FOLDED`."""
    cells = zip(table.columns, *table.rows, strict=True)
    widths = [max(map(cell_len, column)) for column in cells]
    return sum(min(w, FOLDED) if i < words else w for i, w in enumerate(widths)) + 2 * (len(widths) - 1)


def _without(table: ReportTable, column: str) -> ReportTable:
    at = table.columns.index(column)
    rows = [[*row[:at], *row[at + 1 :]] for row in table.rows]
    return replace(table, columns=[*table.columns[:at], *table.columns[at + 1 :]], rows=rows)


def _table(table: ReportTable, words: int) -> RichTable:
    """The first `words` columns stand to the left and may be folded; the others are numbers."""
    shown = RichTable(
        title=table.title,
        title_justify="left",
        title_style="bold",
        box=None,
        header_style="dim",
        pad_edge=False,
    )
    for i, column in enumerate(table.columns):
        word = i < words
        shown.add_column(column, justify="left" if word else "right", no_wrap=not word, overflow="fold")
    for row in table.rows:
        shown.add_row(*map(escape, row))
    return shown
