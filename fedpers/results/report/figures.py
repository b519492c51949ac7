"""What the interactive figures of a report show, as plain values; `page/script.js` draws them."""

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from fedpers.results.files import series
from fedpers.results.plots import style
from fedpers.results.report.runs import SeedGroup, StoredRun
from fedpers.results.report.standings import Comparison, Standing, client_names, seed_of

COSTS = {"bytes": ("bytes_up", "bytes_down"), "gradients": ("gradient_evals",), "seconds": ("seconds",),
         "hours": ("virtual_seconds",)}  # fmt: skip
UNITS = {"hours": 3600}
CURVES = ("accuracy", "worst_decile", "loss")
MOST_DOTS = 400  # clients of one method; of more, every so many is shown


def figures(comparison: Comparison) -> dict[str, Any]:
    """Colours, curves and clients of one comparison."""
    names = [s.name for s in comparison.rows]
    methods = {s.group.method for s in comparison.rows}
    colours = [style.colour(m, sorted(methods)) for m in (s.group.method for s in comparison.rows)]
    return {
        "names": names,
        "colours": colours if len(methods) == len(names) else [style.colour(n, names) for n in names],
        "metrics": [
            m
            for m in CURVES
            if any(series(r.rows, "test", m)[0] for s in comparison.rows for r in s.group.runs)
        ],
        "curves": [point for s in comparison.rows for point in curve(s.group)],
        "clients": [dot for s in comparison.rows for dot in client_dots(s, comparison.reference("local"))],
    }


def curve(group: SeedGroup) -> list[dict[str, Any]]:
    """A point an evaluation that all runs have: mean and spread of each metric, mean costs so far."""
    spent = [costs(run) for run in group.runs]
    found = {m: [dict(zip(*series(run.rows, "test", m), strict=True)) for run in group.runs] for m in CURVES}
    rounds = sorted({t for runs in found.values() for t in set.intersection(*map(set, runs))})
    return [
        {
            "name": group.label,
            "round": t,
            **{
                key: _known(np.mean([s[t][key] for s in spent]))
                for key in COSTS
                if all(t in s for s in spent)
            },
            **{
                k: v
                for m, runs in found.items()
                for k, v in _band(m, [r.get(t, math.nan) for r in runs]).items()
            },
        }
        for t in rounds
    ]


def costs(run: StoredRun) -> dict[int, dict[str, float]]:
    """{round: bytes both ways, gradient evaluations and seconds, of all rounds so far}."""
    rows = [r for r in run.rows if r["split"] == "train"]
    sums = {  # lists: a generator would look its columns up when all are named, and find the last ones
        k: list(accumulate([sum(r.get(c, 0) for c in columns) / UNITS.get(k, 1) for r in rows]))
        for k, columns in COSTS.items()
    }
    return {
        r["round"]: dict(zip(sums, values, strict=True))
        for r, values in zip(rows, zip(*sums.values(), strict=True), strict=True)
    }


def client_dots(standing: Standing, local: Standing | None) -> list[dict[str, Any]]:
    """A dot a client and seed: its accuracy, and how much that is above its local training."""
    reference: Mapping[int, Mapping[int, float]] = {} if local in (None, standing) else local.per_client
    called = {seed_of(run): client_names(run) for run in standing.group.runs}
    dots = [
        {
            "name": standing.name,
            "seed": seed,
            "client": k,
            **({"called": names[k]} if (names := called.get(seed)) else {}),
            "accuracy": round(value, 4),
            "gain": _known(value - reference.get(seed, {}).get(k, math.nan)),
        }
        for seed, table in sorted(standing.per_client.items())
        for k, value in sorted(table.items())
    ]
    return dots[:: -(-len(dots) // MOST_DOTS) or 1]


def _band(metric: str, values: Sequence[float]) -> dict[str, float | None]:
    mean = float(np.mean(values))
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return {
        metric: _known(mean),
        f"{metric}_low": _known(mean - spread),
        f"{metric}_high": _known(mean + spread),
    }


def _known(value: Any) -> float | None:
    """Five significant digits; nan, which JSON has not, is None."""
    return None if math.isnan(value) else float(f"{value:.5g}")
