"""What it takes to reach a score: rounds, bytes, operations and time, with runs marked that never did.

A run that ended below the score has not told what it would have taken. It counts as later than all that
reached it, so a median over runs stays right as long as more than half of them reached it.
"""

import math
import statistics
from collections.abc import Iterator, Sequence

from fedpers.config.stop import StopConfig
from fedpers.results.report.runs import SeedGroup, Setting, StoredRun
from fedpers.results.report.screen import ReportTable

STEP = 0.05  # a score that nobody named is a multiple of it
BUDGETS = {  # column: (columns of metrics.csv that are summed over the rounds, divided by)
    "MB": (("bytes_up", "bytes_down"), 1e6),
    "GFLOP": (("gflops",), 1.0),
    "seconds": (("seconds",), 1.0),
    "simulated hours": (("virtual_seconds",), 3600.0),
}


def tables(setting: Setting, target: float | None = None) -> list[ReportTable]:
    """A row a group; nothing where no score can be named.

    Args:
        setting: the groups.
        target: the score; None: the runs' own `stop.target`, else what half of the groups reach, in steps.
    """
    runs = [run for group in setting.groups for run in group.runs]
    stops = {_stop(run) for run in runs}
    named = stops.pop() if len(stops) == 1 else StopConfig()
    split = "valid" if all(_curve(run, "valid", named.metric) for run in runs) else "test"
    goal = named.target if target is None else target
    if goal is None:
        goal = _reachable(setting, split, named)
    if goal is None:
        return []
    stop = StopConfig(named.metric, goal)
    known = [c for c in BUDGETS if any(BUDGETS[c][0][0] in row for run in runs for row in run.rows)]
    rows = [[g.name, *_row(g, split, stop, known)] for g in setting.groups]
    score = f"{goal:.2%}".replace(".00", "") if named.metric == "accuracy" else f"{goal:g}"
    way = "valid" if split == "valid" else "test"
    title = f"what it takes to reach {way} {named.metric} {score} (medians; > is a run that ended before)"
    return [ReportTable(title, ("method", "reached", "rounds", *known), rows)]


def spent(run: StoredRun, split: str, stop: StopConfig) -> tuple[bool, dict[str, float]]:
    """(whether the run reached the target, what it had spent by then or at its end)."""
    reached = [t for t, value in _curve(run, split, stop.metric).items() if stop.reaches(value)]
    train = [r for r in run.rows if r["split"] == "train"]
    until = min(reached) if reached else max((r["round"] for r in train), default=0)
    found = {"rounds": float(until)}
    for name, (columns, unit) in BUDGETS.items():
        found[name] = sum(r.get(c, 0.0) for r in train if r["round"] <= until for c in columns) / unit
    return bool(reached), found


def _row(group: SeedGroup, split: str, stop: StopConfig, known: Sequence[str]) -> Iterator[str]:
    results = [spent(run, split, stop) for run in group.runs]
    yield f"{sum(reached for reached, _ in results)} of {len(results)}"
    for name in ("rounds", *known):
        median = statistics.median([s[name] if reached else math.inf for reached, s in results])
        ended = [s[name] for reached, s in results if not reached]
        yield f"{median:.4g}" if math.isfinite(median) else f"> {max(ended):.4g}"


def _reachable(setting: Setting, split: str, stop: StopConfig) -> float | None:
    """The largest step that half of the groups' median runs reach; None where no accuracy is known."""
    if stop.metric != "accuracy":
        return None
    best = []
    for group in setting.groups:
        tops = [max(_curve(run, split, "accuracy").values(), default=math.nan) for run in group.runs]
        known = [top for top in tops if not math.isnan(top)]
        if known:
            best.append(statistics.median(known))
    if not best:
        return None
    middle = sorted(best, reverse=True)[(len(best) - 1) // 2]
    return round(math.floor(middle / STEP + 1e-9) * STEP, 2) or None


def _curve(run: StoredRun, split: str, metric: str) -> dict[int, float]:
    return {
        r["round"]: r[metric] for r in run.rows if r["split"] == split and r.get(metric) == r.get(metric, 0)
    }


def _stop(run: StoredRun) -> StopConfig:
    return StopConfig(**{k: v for k, v in (run.config.get("stop") or {}).items() if k != "patience"})
