"""The distances of an experiment's methods to local training and FedAvg, as a table of a page."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpers.core.documents import table
from fedpers.results.method_tables import RESULTS

NAMES = {"local": "local training", "fedavg": "FedAvg"}
UNITS = {"accuracy": "test accuracy in points", "loss": "test loss"}
NOTE = (
    "*difference*: {unit} of the method minus that of the method beside it, {when}, paired by seed; *a "
    "client gains*: the same after the last round, paired by client, as a mean over clients and then over"
    " seeds; *better*, *worse*: the shares of clients that gain and lose. In brackets 95 % intervals; "
    "intervals and p are corrected for the number of methods ([which tests]({up}/docs/statistics.md))."
)


def differences(file: str, root: Path, up: str) -> str:
    """A row a method and reference of a result file."""
    record = json.loads((root / RESULTS / file).read_text(encoding="utf-8"))
    found = record["differences"]
    rows = [_row(row) for row in found]
    heads = ["method", "beside", "seeds", "difference", "p", "a client gains", "clients better", "worse"]
    note = NOTE.format(unit=UNITS[found[0]["metric"]], when=found[0]["round"], up=up)
    return f"{table(heads, rows)}\n\n{note}"


def _row(row: Mapping[str, Any]) -> list[str]:
    seeds, clients = row["seeds"], row["clients"]
    told = ["", "", ""]
    if clients:
        told = [_interval(clients), f"{clients['better']:.0%}", f"{clients['worse']:.0%}"]
    p = "" if seeds["p"] is None else f"{seeds['p']:.2g}"
    return [row["method"], NAMES[row["reference"]], str(seeds["n"]), _interval(seeds), p, *told]


def _interval(d: Mapping[str, Any]) -> str:
    """The mean with its interval; one seed has none, a run that diverged no mean."""
    if d["gap"] is None:
        return "diverged"
    digits = f"{d['gap']:+.2f}"
    return digits if d["low"] is None else f"{digits} ({d['low']:+.2f} to {d['high']:+.2f})"
