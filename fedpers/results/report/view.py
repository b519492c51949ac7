"""What the page of a report says about one comparison, ready for its template."""

import base64
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fedpers.results.report import client_tables
from fedpers.results.report.figures import figures
from fedpers.results.report.ranking import pairwise, ranking, row
from fedpers.results.report.record import command
from fedpers.results.report.runs import IGNORED, StoredRun
from fedpers.results.report.screen import ReportTable
from fedpers.results.report.standings import Comparison, seed_of
from fedpers.results.report.tables import spread
from fedpers.results.report.wording import clients_note, sentence, warnings

METRICS = {"accuracy": "accuracy", "worst_decile": "worst tenth", "loss": "loss"}
AXES = {"round": "rounds", "bytes": "bytes", "gradients": "gradients", "seconds": "seconds",
        "hours": "simulated hours"}  # fmt: skip
CHOSEN = "Test {metric} in the round that the validation split chose"
LAST = "Test {metric} after the last round, for some run has no validation split that could choose"
RANKING = (
    "{which}: mean ± standard deviation over seeds, a tick a seed. Differences are paired by seed: mean, "
    "95 % interval and p of a t test, both for all comparisons of a column together (Bonferroni). Clients "
    "hurt have a lower accuracy than under local training; they, the worst tenth and the spread over clients "
    "are those after the last round."
)
CURVES = (
    "Mean over seeds, shaded one standard deviation. Choose what the budget is; click a method to hide it."
)


def view(comparison: Comparison, tables: Sequence[ReportTable], folder: Path) -> dict[str, Any]:
    """Everything about one comparison; links are relative to `folder`."""
    runs = [run for s in comparison.rows for run in s.group.runs]
    data = figures(comparison)
    headline, reason = sentence(comparison)
    which = CHOSEN if comparison.by_validation else LAST
    scale = 100.0 if comparison.larger_is_better else 1.0
    return {
        "id": slug(comparison.name),
        "name": comparison.name,
        "verdict": headline,
        "reason": reason,
        "warnings": warnings(runs),
        "facts": _facts(comparison, runs),
        "ranking_note": RANKING.format(which=which.format(metric=comparison.metric)),
        **ranking(comparison, data["colours"], scale),
        "curves_note": CURVES,
        "metrics": [(m, METRICS[m]) for m in data["metrics"]],
        "axes": [(k, v) for k, v in AXES.items() if k == "round" or any(p.get(k) for p in data["curves"])],
        "clients_note": clients_note(comparison),
        "tables": [*pairwise(comparison), *client_tables.tables(comparison), *tables],
        "hyper": hyper_table(comparison),
        "shared": _shared(runs),
        "pictures": _pictures(comparison),
        "versions": versions(runs),
        "score": comparison.metric + (" %" if scale == 100 else ""),
        "runs": [_run(comparison, run, folder, scale) for run in runs],
        "records": [row(s) for s in comparison.rows],
        "client_records": client_tables.records(comparison),
        "data": data,
    }


def hyper_table(comparison: Comparison) -> ReportTable:
    """A row a method: the keys of its own."""
    rows = [
        [
            s.name,
            "  ".join(
                f"{k.removeprefix('method.')}={_plain(v)}" for k, v in s.group.runs[0].flat.items() if _own(k)
            )
            or "-",
        ]
        for s in comparison.rows
    ]
    return ReportTable("each method's own keys", ("method", "keys"), rows)


def _own(key: str) -> bool:
    return key.startswith("method.") and key != "method.name"


def versions(runs: Sequence[StoredRun]) -> str:
    """Commit and versions, once if all runs agree."""
    found = dict.fromkeys(
        ", ".join(
            [f"commit {run.summary.get('git_commit') or 'unknown'}"]
            + [f"{k} {v}" for k, v in (run.summary.get("versions") or {}).items()]
        )
        for run in runs
    )
    return "; ".join(found)


def slug(name: str) -> str:
    """A name for files and links."""
    return re.sub(r"\W+", "-", name).strip("-")


def _facts(comparison: Comparison, runs: Sequence[StoredRun]) -> list[tuple[str, str]]:
    flat = runs[0].flat
    per_round = flat.get("clients_per_round") or "all"
    seeds = sorted({seed_of(run) for run in runs})
    return [
        ("data", str(flat["data.name"])),
        ("model", str(flat["model.name"]) + _trained(runs[0])),
        ("clients", f"{flat.get('data.num_clients', '?')}, {per_round} a round"),
        ("rounds", str(flat.get("rounds", "?"))),
        ("seeds", ", ".join(map(str, seeds))),
        ("runs", str(len(runs))),
    ]


def _trained(run: StoredRun) -> str:
    """How many of the entries are trained, if some are frozen."""
    found = run.summary.get("trains") or {"entries": 0, "of": 0}
    frozen = found["entries"] < found["of"]
    return f", trains {found['entries']:,} of {found['of']:,} parameters" if frozen else ""


def _shared(runs: Sequence[StoredRun]) -> list[tuple[str, str]]:
    """The keys outside of the method that all runs share."""
    first = runs[0].flat
    return [
        (k, _plain(v))
        for k, v in first.items()
        if k.split(".")[0] not in (*IGNORED, "method") and all(run.flat.get(k) == v for run in runs)
    ]


def _plain(v: Any) -> str:
    return "null" if v is None else str(v)


def _pictures(comparison: Comparison) -> list[Mapping[str, str]]:
    """The partition once, then each method's own pictures; of the first run of each group."""
    firsts = [(s.name, s.group.runs[0]) for s in comparison.rows]
    found = [("", firsts[0][1], firsts[0][1].path / "plots" / "partition.png")]
    found += [
        (f"{name}: ", run, path)
        for name, run in firsts
        for path in sorted((run.path / "plots").glob("*.png"))
        if path.stem not in ("partition", "learning_curves")
    ]
    return [
        {
            "caption": f"{who}{path.stem.replace('_', ' ')}, seed {seed_of(run)}",
            "data": base64.b64encode(path.read_bytes()).decode(),
        }
        for who, run, path in found
        if path.is_file()
    ]


def _run(comparison: Comparison, run: StoredRun, folder: Path, scale: float) -> dict[str, Any]:
    score = run.best(comparison.metric) if comparison.by_validation else run.value(comparison.metric)
    chosen = (run.summary.get("best") or {}).get("round") if comparison.by_validation else None
    return {
        "name": run.path.name or str(run.path),
        "link": quote(Path(os.path.relpath(run.path, folder)).as_posix()) + "/",
        "seed": seed_of(run),
        "score": spread([score], scale),
        "round": chosen or run.summary.get("rounds_done", "-"),
        "command": command(run),
    }
