"""Tables about single clients: what each gains beside its local training, and each one's accuracy."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from fedpers.results.report.screen import ReportTable
from fedpers.results.report.standings import Comparison, Standing, client_names, seed_of
from fedpers.results.report.statistics import mean
from fedpers.results.report.tables import interval, signed

MOST_CLIENTS = 50  # in a table to be read; the table of report/NAME-clients.csv has all
GAINS = (
    "clients beside their local training, after the last round: paired by client, clustered by seed, "
    "95 % intervals and p of all rows together"
)
EACH = "accuracy of each client in %, after the last round, mean over seeds"


def tables(comparison: Comparison) -> list[ReportTable]:
    """What clients gain, and a row a client where all runs have the same clients by name."""
    made = [gains(comparison), each_client(comparison)]
    return [table for table in made if table.rows]


def gains(comparison: Comparison) -> ReportTable:
    """A row a method: mean gain of a client in points, its interval and p, and who is hurt."""
    columns = ("method", "clients", "gain of a client", "95 % interval", "p", "better off", "hurt")
    rows = []
    for s in comparison.rows:
        if c := s.clients:
            known = ["-", "-"] if math.isnan(c.gain.p) else [interval(c.gain, 100), f"{c.gain.p:.2g}"]
            shares = [f"{share:.0%}" for share in (c.gained, c.hurt)]
            rows.append([s.name, str(c.count), signed(c.gain.gap, 100), *known, *shares])
    return ReportTable(GAINS, columns, rows)


def each_client(comparison: Comparison) -> ReportTable:
    """A row a client, a column a method; the clients whose accuracy differs most between methods, if many."""
    found = {s.name: _by_name(s) for s in comparison.rows}
    if not all(found.values()):
        return ReportTable(EACH, ("client",), [])
    everyone = list(dict.fromkeys(name for table in found.values() for name in table))
    rows = {name: [table.get(name, math.nan) for table in found.values()] for name in everyone}
    kept = sorted(everyone, key=lambda name: -_range(rows[name]))[:MOST_CLIENTS]
    some = f": the {len(kept)} of {len(everyone)} that differ most" if len(kept) < len(everyone) else ""
    texts = [[name, *map(_percent, rows[name])] for name in everyone if name in set(kept)]
    return ReportTable(EACH + some, ("client", *found), texts)


def records(comparison: Comparison) -> list[dict[str, Any]]:
    """A row a method, seed and client as plain numbers, for CSV; empty where clients have no accuracy."""
    local = comparison.reference("local")
    return [
        {
            "method": s.name,
            "seed": seed,
            "partition_id": k,
            "name": names.get(k, ""),
            "accuracy": value,
            "gain": value - _alone(local, seed, k),
        }
        for s in comparison.rows
        for seed, names in _names(s).items()
        for k, value in s.per_client.get(seed, {}).items()
    ]


def _alone(local: Standing | None, seed: int, k: int) -> float:
    return local.per_client.get(seed, {}).get(k, math.nan) if local else math.nan


def _names(standing: Standing) -> Mapping[int, Mapping[int, str]]:
    return {seed_of(run): client_names(run) for run in standing.group.runs}


def _by_name(standing: Standing) -> dict[str, float]:
    """{client: mean accuracy over the seeds}; empty where a run does not name its clients."""
    names, values = _names(standing), dict[str, list[float]]()
    if not all(names.values()):
        return {}
    for seed, table in standing.per_client.items():
        for k, value in table.items():
            values.setdefault(names[seed][k], []).append(value)
    return {name: mean(many) for name, many in values.items()}


def _range(values: Iterable[float]) -> float:
    known = [v for v in values if not math.isnan(v)]
    return max(known) - min(known)


def _percent(x: float) -> str:
    return "-" if math.isnan(x) else f"{100 * x:.2f}"
