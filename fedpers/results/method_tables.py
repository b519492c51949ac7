"""A method's rows of the benchmark, for its page: a row a data set, beside local training and FedAvg."""

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
    "worst decile": "worst tenth %",
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
