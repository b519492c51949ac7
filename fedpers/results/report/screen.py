"""A report on the screen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

WIDE = 160  # characters a line where the screen is a file, which has no edge


@dataclass(frozen=True)
class ReportTable:
    """Text in rows and columns; numbers from the second column on."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def show(comparisons: Sequence[Mapping[str, Any]], left_out: ReportTable) -> None:
    """Verdict and tables of each comparison, then the runs that do not count."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDE)  # a file has no edge
    for c in comparisons:
        console.print(f"[bold]{escape(c['verdict'])}[/]", escape(c["reason"]), "", sep="\n", highlight=False)
        for warning in c["warnings"]:
            console.print(f"[yellow]{escape(warning)}[/]", "", sep="\n", highlight=False)
        for table in [c["ranking"], *c["tables"]]:
            console.print(_table(table, words=2 if table is c["ranking"] else 1), "", highlight=False)
    if left_out.rows:
        console.print(_table(left_out, words=len(left_out.columns)), "", highlight=False)


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
