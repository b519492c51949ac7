"""The results of benchmarks as Markdown: one table a suite, with machine and versions.

`fedpers bench` leaves one JSON file a suite (and setting) in its results folder; the tables of all
that is there stand between two marks of benchmarks/tables.md.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from fedpers.bench.cells import Columns, Row
from fedpers.bench.columns import SUITES
from fedpers.core import documents

SCRIPTS = {
    "profile": "fedpers bench methods --profile",
    "pflego_cost": "python benchmarks/pflego_cost.py",
    "convolutions": "python benchmarks/convolutions.py",
    "start": "python benchmarks/start.py",
    "devices": "fedpers bench cuda --devices N",
}  # tables with a command of their own
OURS = "written by `fedpers bench`"  # the part of a page that holds all tables
PEERS = "factors beside peers"  # the part of a page that holds `factors`
NAMES = {"lr": "logistic regression", "mlp": "MLP", "lenet": "LeNet", "cnn": "CNN"}  # of models
SAME = {"lr": "logistic"}  # names of models in files of `fedpers bench libraries`


def update(document: Path, folder: Path) -> None:
    """Put the tables of all results in `folder` into a document, in place of those it had."""
    made = {OURS: render, PEERS: factors}
    documents.fill(document, lambda name: made[name](folder) if name in made else None)


def factors(folder: Path) -> str:
    """How many times as long a round takes elsewhere, a row a model; peers in as many processes as ours."""
    heads = ["model", "Flower's simulation", "pfl-research", "FedJAX", "plain loop", "PFLlib", "FL-bench"]
    ways = [("flower-ray", 2), ("pfl-research", 2), ("fedjax", 1), ("tight", 1)]
    beside = [r for f in sorted(folder.glob("libraries*.json")) for r in _rows(f) if r["clients"] == 100]
    lines = []
    for model, title in NAMES.items():
        took = {(r["engine"], r["processes"]): r["seconds"] for r in _rows(folder / f"rounds-{model}.json")}
        cells = [f"{took[w] / took['auto', w[1]]:.3g}" if w in took else "" for w in ways]
        here = [r for r in beside if r["model"] in (SAME.get(model, model), f"{model}-200-200")]
        cells += [_span(here, ("pflib", "pflib_ram")), _span(here, ("fl_bench",))]
        lines.append([title, *cells])
    return documents.table(heads, lines)


def _span(rows: Sequence[Row], names: Sequence[str]) -> str:
    """The least and the largest factor of a library over methods and processors."""
    times = [r[f"times_{name}"] for name in names for r in rows if r.get(f"times_{name}")]
    return f"{min(times):.1f} to {max(times):.2g}" if times else ""


def _rows(file: Path) -> list[Row]:
    rows: list[Row] = json.loads(file.read_text(encoding="utf-8"))["rows"]
    return rows


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
