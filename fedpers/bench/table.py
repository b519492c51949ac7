"""The results of benchmarks as Markdown: one table a suite, with machine and versions.

`fedpers bench` leaves one JSON file a suite (and setting) in its results folder; the tables of all
that is there stand between two marks of docs/performance.md.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from fedpers.bench.cells import Columns, Row
from fedpers.bench.columns import SUITES
from fedpers.core import documents

SCRIPTS = {
    "profile": "fedpers bench methods --profile",
    "parts": "python benchmarks/parts.py",
    "pflego_cost": "python benchmarks/pflego_cost.py",
    "unified_overhead": "python benchmarks/unified_overhead.py",
    "convolutions": "python benchmarks/convolutions.py",
    "recurrent": "python benchmarks/recurrent.py",
    "exchange": "python benchmarks/exchange.py",
    "room": "python benchmarks/room.py",
    "start": "python benchmarks/start.py",
}  # tables with a command of their own
OURS = "written by `fedpers bench`"  # the part of a page that holds all tables


def update(document: Path, folder: Path) -> None:
    """Put the tables of all results in `folder` into a document, in place of those it had."""
    documents.fill(document, lambda name: render(folder) if name == OURS else None)


def render(folder: Path) -> str:
    """All tables; a suite without results says how to get them."""
    parts = []
    for suite, (title, note, columns) in SUITES.items():
        parts.append(f"### {title}\n\n{note}\n")
        content = [json.loads(f.read_text(encoding="utf-8")) for f in sorted(folder.glob(f"{suite}*.json"))]
        if content:
            rows = [{"processor": c["machine"]["cpu"]} | row for c in content for row in c["rows"]]
            parts += [table(rows, columns), "", *_machines([c["machine"] for c in content]), ""]
        else:
            parts.append(f"Not measured yet: `{SCRIPTS.get(suite, f'fedpers bench {suite}')}`.\n")
    return "\n".join(parts)


def table(rows: Sequence[Row], columns: Columns) -> str:
    """Rows as Markdown."""
    cells = [[c.format(**r) if isinstance(c, str) else c(r) for c in columns.values()] for r in rows]
    return documents.table(list(columns), cells)


def _machines(found: Sequence[Row]) -> list[str]:
    """A line for each day and machine, with the versions of all that was measured there."""
    versions: dict[str, dict[str, str]] = {}
    for m in found:
        where = "{date} on {cpu}, {cores} cores, Python {python}".format(**m)
        versions.setdefault(where, {}).update(m["versions"])
    return [
        f"Measured {where}: {', '.join(f'{n} {v}' for n, v in sorted(of.items()))}."
        for where, of in sorted(versions.items())
    ]
