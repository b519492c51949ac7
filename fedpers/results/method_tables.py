"""What a method's page shows: its algorithm box, and its rows of the benchmark, a row a data set."""

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpers.core.documents import table

RESULTS = "benchmarks/results"
SCORE = "accuracy, round chosen on validation"
COLUMNS = {  # of a file: head of the table
    SCORE: "accuracy %",
    "above local": "above local",
    "above fedavg": "above FedAvg",
    "worst tenth": "worst tenth %",
    "unseen clients, after adaptation": "unseen clients %",
    "MB sent": "MB sent",
}
SETS = {"digits": "Digits", "fashion_mnist": "Fashion-MNIST"}
SPLITS = {  # data.partition: what of the samples a client has
    "classes": "4 of 10 classes a client",
    "dirichlet": "Dirichlet shares, alpha 0.1",
    "rotations": "four rotations",
}
NOTE = (
    "Mean ± standard deviation over seeds; *above local* and *above FedAvg* are differences on the same "
    "seeds, in points; *worst tenth* is the mean over the worst tenth of the clients; *unseen clients* never "
    "trained, and are tested after five epochs on their own data; *place* is among the methods of the same "
    "table, by accuracy. Rounds, seeds and the number of trials for the settings are the same for all "
    "([the benchmark]({up}/docs/benchmark.md))."
)
Cell = tuple[float, float | None]


def benchmark(names: str, root: Path, up: str) -> str:
    """The rows of these methods, "a, b", in all files of the benchmark, and what the columns are."""
    methods = names.split(", ")
    several = len(methods) > 1
    found: dict[tuple[str, str], list[str]] = {}
    for path in sorted((root / RESULTS).glob("benchmark_*.json"), key=_order):
        for where, method, cells in _rows(path, methods):
            found.setdefault((where, method), cells)  # the first of two files is that of all methods
    rows = [[where, *([method] if several else []), *cells] for (where, method), cells in found.items()]
    if not rows:
        return "Not measured on the benchmark's data yet."
    heads = ["clients' data", *(["method"] if several else []), *COLUMNS.values(), "place"]
    return f"{table(heads, rows)}\n\n{NOTE.format(up=up)}"


def _order(path: Path) -> tuple[bool, str]:
    return "fashion" in path.name, path.name


def _rows(path: Path, methods: Sequence[str]) -> Iterator[tuple[str, str, list[str]]]:
    """(the clients' data, method, cells) of those methods that the file has."""
    record = json.loads(path.read_text(encoding="utf-8"))
    found: dict[str, dict[str, Cell]] = {}
    for row in record["results"]:
        found.setdefault(row["method"], {})[row["column"]] = (row["mean"], row["std"])
    scores = [values[SCORE][0] for values in found.values()]
    for method in methods:
        if method in found:
            own = found[method]
            place = 1 + sum(score > own[SCORE][0] + 1e-9 for score in scores)
            cells = [_number(own.get(column)) for column in COLUMNS]
            yield _where(record), method, [*cells, f"{place} of {len(scores)}"]


def _number(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    mean, std = cell
    spread = "" if std is None else f"{std:.1f}"
    return f"{mean:.1f}" + (f" ± {spread}" if spread.strip("0.") else "")


def _where(record: Mapping[str, Any]) -> str:
    """What the runs changed of the benchmark's file, in words."""
    changed = dict(word.split("=", 1) for word in record["changed"])
    name, split = changed.get("data", "digits"), changed.get("data.partition", "classes")
    return f"{SETS[name]}: {SPLITS[split]}"


# ---- its algorithm -------------------------------------------------------------------------------

LEGEND = (  # under every box
    "[S1], [S2].. are the server's steps, [C1], [C2].. those of one client; the lines of code that do them "
    "have the same marks, and an arrow is a message. Where the box does not say otherwise, r is the number "
    "of clients in a round, f_k or F_k client k's mean training loss, ℓ the loss of a batch, and n_k "  # noqa: RUF001
    "the number of client k's training samples."
)


def box(path: Path) -> str:
    """The objective and the algorithm as the docstring of a strategy has them, and how to read them."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    lines = text.splitlines()
    indented = [i for i, line in enumerate(lines) if line.startswith("    ")]
    shown = lines[indented[0] : indented[-1] + 1]
    kept = [line[4:] for line in shown if line.startswith("    ") or not line]
    return "```text\n" + "\n".join(kept) + f"\n```\n\n{LEGEND}"
