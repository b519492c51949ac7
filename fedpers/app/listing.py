"""`fedpers list`: what there is to choose from. Imports neither torch nor Flower."""

import importlib.resources
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedpers.config import registry
from fedpers.datasets.partition import PARTITIONS

GROUPS = {
    "data": "data sets",
    "model": "models",
    "engine": "engines",
    "systems": "simulated devices",
    "aggregation": "aggregation",
    "privacy": "privacy",
    "experiment": "experiments",
}
STATUS = {"verified": "green", "runs": "cyan", "untried": "yellow", "broken": "red"}


def show(console: Console | None = None) -> None:
    """Print the tables."""
    console = console or Console()
    table = _table("methods", "method=", "what it does", "paper", "status")
    for row in sorted(registry.methods().values(), key=lambda row: row.name):
        status = Text(row.status, STATUS.get(row.status, ""))
        table.add_row(row.name, row.summary, row.paper, status)
    console.print(table)
    _print(console, "partitions", "data.partition=", [(k, v.text) for k, v in PARTITIONS.items()])
    for group, title in GROUPS.items():
        prefix = "+experiment=" if group == "experiment" else f"{group}="
        _print(console, title, prefix, described(group))


def described(group: str) -> list[tuple[str, str]]:
    """(name, first comment) of each file in conf/<group>, by name."""
    folder = importlib.resources.files("fedpers.conf") / group
    texts = {f.name: f.read_text(encoding="utf-8") for f in folder.iterdir() if f.name.endswith(".yaml")}
    return [(name.removesuffix(".yaml"), _comment(text)) for name, text in sorted(texts.items())]


def _comment(text: str) -> str:
    """The first line of the comment at the head of a file."""
    comments = [line[1:].strip() for line in text.splitlines() if line.startswith("#")]
    return next((line for line in comments if not line.startswith("@package")), "")


def _print(console: Console, title: str, prefix: str, rows: Iterable[tuple[str, str]]) -> None:
    table = _table(title, prefix, "")
    for row in rows:
        table.add_row(*map(Text, row))
    if table.row_count:
        console.print(table)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, min_width=len(title))
    table.header_style, table.pad_edge = "dim", False
    for i, column in enumerate(columns):
        table.add_column(column, style="bold" if i == 0 else "", no_wrap=i == 0)
    return table
