"""summary.json: what was run, with what, and how it ended."""

import importlib.metadata
import json
import math
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import fedpers
from fedpers.config.run_config import RunConfig
from fedpers.core.scores import SCORES, SPREADS, short
from fedpers.results import files
from fedpers.results.files import CsvRow

PACKAGES = ("torch", "torchvision", "flwr", "ray", "numpy", "scipy", "scikit-learn", "pillow", "optuna",
            "hydra-core", "datasets", "flwr-datasets", "timm")  # fmt: skip  # what moves a number
WARM_UP = 10  # rounds in which kernels are compiled and chunk sizes chosen
DIVERGED = 100.0  # a test loss of so many times that of guessing, or the first one, is of no use
INTERRUPTED = "interrupted"  # status of a run that was saved on a scheduler's word
NAMED = 5  # clients in a sentence
METRICS = ("loss", "accuracy", "accuracy_mean", "worst_decile")


def describe(cfg: RunConfig) -> dict[str, Any]:
    """What is known of a run before its first round."""
    return {
        "method": cfg.method_name,
        "data": cfg.data.name,
        "model": cfg.model.name,
        "experiment": cfg.experiment,
        "seed": cfg.seed,
        "rounds": cfg.rounds,
        "engine": cfg.engine.name,
        "versions": versions(),
        "git_commit": git_commit(),
    }


def results(
    rows: Sequence[CsvRow],
    lost: Sequence[int] = (),
    chance: float | None = None,
    metrics: Sequence[str] = tuple(SCORES),
) -> dict[str, Any]:
    """Final and best metrics and costs, from the rows of metrics.csv; for the rest see `warnings`."""
    doubts = warnings(rows, lost, chance)
    cost = [r for r in rows if r["split"] == "train"]
    seconds = [r["seconds"] for r in cost if "seconds" in r]
    median = statistics.median(seconds) if seconds else math.nan
    tests = {r["round"]: r for r in rows if r["split"] == "test"}
    return new_clients(rows) | {
        "rounds_done": max((r["round"] for r in rows), default=0),
        "final": _metrics(tests[max(tests)], metrics) if tests else {},
        "best": best(rows, metrics),
        "bytes": {"up": _sum(cost, "bytes_up"), "down": _sum(cost, "bytes_down")},
        **{name: _sum(cost, name) for name in ("gradient_evals", "body_forwards", "head_steps")},
        **({"gflops": _sum(cost, "gflops")} if any("gflops" in r for r in cost) else {}),
        "failures": _sum(cost, "failures"),
        "round_seconds": _sum(cost, "seconds"),
        "between_seconds": _sum(cost, "between_seconds"),
        "median_round_seconds": median,
        "warm_up_seconds": sum(max(s - median, 0.0) for s in seconds[:WARM_UP]),
        "diverged": bool(doubts),
        "warnings": doubts,
    }


def new_clients(rows: Sequence[CsvRow]) -> dict[str, Any]:
    """{"new_clients": {before, after}}: their metrics in the last evaluation; empty where there is none.

    `after` is None where they predict with what they were sent, without an adaptation of their own.
    """
    found = [r for r in rows if r["split"] == "new"]
    if not found:
        return {}
    row = found[-1]
    after = {m: row[m] for m in METRICS if m in row}
    before = {m: row[f"{m}_before"] for m in METRICS if f"{m}_before" in row}
    return {"new_clients": {"before": before or after, "after": after if before else None}}


def warnings(rows: Sequence[CsvRow], lost: Sequence[int] = (), chance: float | None = None) -> list[str]:
    """What makes a run's numbers useless: training that diverged.

    Args:
        rows: of metrics.csv.
        lost: the clients whose last test loss is no number or infinite.
        chance: the loss of guessing blindly, where there is such a thing; else the first loss stands for it.
    """
    tests = [r for r in rows if r["split"] == "test"]
    if not tests:
        return []
    first, last = (r.get("loss", math.nan) for r in (tests[0], tests[-1]))
    blind = max(first, 1.0) if chance is None else max(chance, 1.0)
    if math.isfinite(last) and not last > DIVERGED * blind:
        return []
    more = f" and {len(lost) - NAMED} more" if len(lost) > NAMED else ""
    named = ", ".join(map(str, lost[:NAMED])) + more
    return [
        f"training diverged{f' (clients {named})' if lost else ''}: test loss {first:.3g} in round "
        f"{tests[0]['round']}, {last:.3g} in the last; lower the learning rate, or "
        "bring columns of unlike scales to one (data.standardise=federated)"
    ]


def best(rows: Sequence[CsvRow], metrics: Sequence[str] = tuple(SCORES)) -> dict[str, Any]:
    """Test metrics of the round that is best on the validation split; empty without one.

    Best is the highest valid accuracy, then the lowest valid loss, then the earliest round; where
    there is no accuracy, the lowest valid loss.
    """
    valid = [r for r in rows if r["split"] == "valid" and ("accuracy" in r or "loss" in r)]
    tests = {r["round"]: r for r in rows if r["split"] == "test"}
    valid = [r for r in valid if r["round"] in tests]
    if not valid:
        return {}
    top = min(valid, key=_rank)
    found = _metrics(tests[top["round"]], metrics)
    found["chosen_by"] = "valid accuracy" if "accuracy" in top else "valid loss"
    return found | {f"valid_{k}": top[k] for k in ("loss", "accuracy") if k in top}


def _rank(row: CsvRow) -> tuple[float, float, int]:
    return -row.get("accuracy", -math.inf), row.get("loss", math.inf), row["round"]


def _metrics(row: CsvRow, metrics: Sequence[str]) -> dict[str, Any]:
    further = [m for m in dict.fromkeys((*map(short, metrics), *SPREADS)) if m in row]
    before = [f"{m}_before" for m in (*METRICS, *further) if f"{m}_before" in row]
    return {"round": row["round"], **{m: row.get(m, math.nan) for m in (*METRICS, *further, *before)}}


def _sum(rows: Sequence[CsvRow], column: str) -> Any:
    return sum(r.get(column, 0) for r in rows)


def read_summary(out: Path) -> dict[str, Any]:
    """The summary of a run directory; empty while the run goes on or if it was killed."""
    path = out / "summary.json"
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        return {"status": "failed", "error": f"summary.json is damaged: {error}"}
    return found if isinstance(found, dict) else {"status": "failed", "error": "no summary in it"}


def note_failure(out: Path, text: str) -> None:
    """Write a summary.json that says why the run has no result."""
    files.replace_json(out / "summary.json", {"status": "failed", "error": text})


def note_interruption(out: Path, signal: str) -> None:
    """Write a summary.json that says that the run is to go on."""
    files.replace_json(out / "summary.json", {"status": INTERRUPTED, "error": f"saved and ended on {signal}"})


def peak_memory() -> float:
    """MB that this process had at most."""
    import resource  # not on Windows

    found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found / (2**20 if sys.platform == "darwin" else 2**10)  # bytes there, KiB elsewhere


def versions() -> dict[str, str]:
    """Versions of the packages that decide the numbers, those of them that are installed."""
    found = {"fedpers": fedpers.__version__, "python": platform.python_version()}
    for name in PACKAGES:
        for distribution in (f"{name}-nightly", name):  # Flower's nightly build stands for flwr
            with suppress(importlib.metadata.PackageNotFoundError):
                found[name] = importlib.metadata.version(distribution)
    return found


@cache
def git_commit() -> str | None:
    """The commit of fedpers' source, with "+" if files were changed; None outside a repository."""
    package = Path(fedpers.__file__).parent
    if not _git(package, "ls-files", "__init__.py"):  # no git, no repository, or not in it
        return None
    changed = _git(package, "status", "--porcelain", "--untracked-files=no")
    commit = _git(package, "rev-parse", "HEAD")
    return f"{commit}+" if commit and changed else commit


def _git(folder: Path, *args: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *args], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
