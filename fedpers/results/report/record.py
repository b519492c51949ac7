"""One experiment as one JSON file: what was run, with what, our numbers and the paper's."""

import importlib.resources
import itertools
import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import yaml

from fedpers.config.compose import CONF
from fedpers.core.data import INCOMPLETE
from fedpers.core.errors import ConfigError
from fedpers.core.scores import short
from fedpers.results.files import plain
from fedpers.results.report.optimality_gap import rates
from fedpers.results.report.paired_tests import Difference
from fedpers.results.report.paper import paper_columns, paper_scale, paper_value
from fedpers.results.report.runs import SeedGroup, Setting, StoredRun
from fedpers.results.report.standings import Comparison, compare, seed_of
from fedpers.results.report.statistics import Scores
from fedpers.results.report.written import MARK

METRICS = ("accuracy", "worst_decile", "loss")
CHOSEN = "round chosen on validation"
FLOORS = ("local", "fedavg", "fedavg_ft")  # an evaluation without them says nothing
FREE = ("method", "seed", "out", "device", "engine", "experiment", "checkpoint_every", "resume")
# keys that make an experiment no smaller, with or without what follows a dot


def text(settings: Sequence[Setting]) -> str:
    """The content of the file of one setting.

    Raises:
        ConfigError: there are several.
    """
    if len(settings) != 1:
        names = "; ".join(s.name for s in settings)
        raise ConfigError(f"--json holds one experiment, these runs are {len(settings)}: {names}")
    return json.dumps(plain(record(settings[0])), indent=1, ensure_ascii=False) + "\n"


def record(setting: Setting) -> dict[str, Any]:
    """Everything that a page needs to show the experiment."""
    runs, floors = [run for group in setting.groups for run in group.runs], _floors(setting)
    return {
        "about": MARK,
        "setting": setting.name,
        "experiment": runs[0].config.get("experiment"),
        "changed": changed(runs),
        "paper": {k: setting.paper[k] for k in ("title", "table", "last") if k in setting.paper},
        "commands": commands(runs),
        "commits": sorted({str(run.summary.get("git_commit") or "unknown") for run in runs}),
        "versions": runs[0].summary.get("versions") or {},
        "notes": list(dict.fromkeys(note for run in runs for note in run.summary.get("notes") or [])),
        "found": {g.name: g.runs[0].search["found"] for g in setting.groups if g.runs[0].search},
        "results": [row for group in _in_order(setting) for row in _rows(group, floors)],
        "differences": [row for comparison in compare(setting) for row in _differences(comparison)],
    }


def _differences(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """A row a method and reference: its mean distance over the seeds; of clients, to local training."""
    scale = _scale(comparison.metric)
    for s in comparison.rows:
        for reference, gap in s.to.items():
            if gap is not None:
                c = s.clients if reference == "local" else None
                yield {
                    "comparison": comparison.name,
                    "method": s.name,
                    "reference": reference,
                    "metric": comparison.metric,
                    "round": "in the round that validation chose"
                    if comparison.by_validation
                    else "after the last round",
                    "seeds": _difference(gap, scale),
                    "clients": c and {"better": c.gained, "worse": c.hurt, **_difference(c.gain, scale)},
                }


def _difference(d: Difference, scale: float) -> dict[str, Any]:
    return {"n": d.n, "gap": scale * d.gap, "low": scale * d.low, "high": scale * d.high, "p": d.p}


def _rows(group: SeedGroup, floors: Mapping[str, Scores]) -> list[dict[str, Any]]:
    """A row a number that the paper prints, or a metric: those that the experiment names, else the usual.

    Of an experiment with a `paper.target`: what it took to come as near to the optimum.
    """
    paper = group.paper
    if "target" in paper:
        found = rates(group, float(paper["target"]))
        return [_row(group, c, many, None) for c, many in found.items() if not math.isnan(sum(many))]
    if paper.get("values") or isinstance(paper.get("metric"), Mapping):
        last, scale, columns = int(paper.get("last", 1)), paper_scale(paper), paper_columns(paper)
        return [
            _row(group, c, [scale * v for v in group.values(m, last)], paper_value(paper, group.method, c))
            for c, m in columns.items()
        ]
    if group.runs[0].search:
        found = _evaluation(group, floors)
    else:
        accurate = not math.isnan(sum(group.values(METRICS[0])))  # a regression has a loss only
        found = {m: [_scale(m) * v for v in group.values(m)] for m in METRICS if accurate or m == "loss"}
        asked = [short(name) for name in group.runs[0].config.get("metrics") or ()]
        found |= {m: group.values(m) for m in asked if m not in found}
        metric = _scored(group)
        found[f"{metric}, {CHOSEN}"] = [_scale(metric) * r.best(metric) for r in group.runs]
        found |= _of_new_clients(group)
    return [_row(group, c, values, None) for c, values in found.items() if not math.isnan(sum(values))]


def _evaluation(group: SeedGroup, floors: Mapping[str, Scores]) -> dict[str, list[float]]:
    """{column: a value a run} of an evaluation of many methods; nan: unknown.

    Accuracy, or the loss of a regression, with its distance to each of `floors`, positive if better; clients
    that never trained; what the run cost.
    """
    summaries, metric = [run.summary for run in group.runs], _scored(group)
    scale, (beyond, sign) = _scale(metric), ("below", -1.0) if metric == "loss" else ("above", 1.0)
    found = {f"{metric}, {CHOSEN}": [scale * run.best(metric) for run in group.runs]}
    for name, scores in floors.items():
        gaps = [sign * scale * (r.best(metric) - scores.get(seed_of(r), math.nan)) for r in group.runs]
        found[f"{beyond} {name}"] = gaps
    found["worst tenth"] = [scale * v for v in group.values("worst_decile")]
    for when in ("before", "after"):
        found[f"unseen clients, {when} adaptation"] = _new_clients(group, metric, (when,))
    found["MB sent"] = [sum((s.get("bytes") or {}).values()) / 1e6 for s in summaries]
    found["gradients, thousands"] = [s.get("gradient_evals", math.nan) / 1e3 for s in summaries]
    found["peak MB"] = [float(s.get("peak_memory_mb", math.nan)) for s in summaries]
    return found


def _floors(setting: Setting) -> dict[str, Scores]:
    """{method: {seed: score}} of the references that the setting has, those with a search before."""
    groups = {g.method: g for g in setting.groups if g.runs[0].search}
    found = {m: groups[m] for m in FLOORS if m in groups}
    return {m: {seed_of(r): r.best(_scored(g)) for r in g.runs} for m, g in found.items()}


def _scored(group: SeedGroup) -> str:
    """What validation chose the round by: accuracy, or the loss where there is no accuracy."""
    return METRICS[-1] if math.isnan(group.runs[0].best(METRICS[0])) else METRICS[0]


def _in_order(setting: Setting) -> list[SeedGroup]:
    """As they are; those of an evaluation the best first."""
    if not any(g.runs[0].search for g in setting.groups):
        return list(setting.groups)
    return sorted(setting.groups, key=_rank)


def _rank(group: SeedGroup) -> float:
    metric = _scored(group)
    return (1 if metric == "loss" else -1) * float(np.mean([run.best(metric) for run in group.runs]))


def _of_new_clients(group: SeedGroup) -> dict[str, list[float]]:
    """{"loss, new clients": a value a run}, after their adaptation if there is one."""
    found = {m: _new_clients(group, m, ("after", "before")) for m in METRICS}
    accurate = not all(math.isnan(v) for v in found["accuracy"])
    return {f"{m}, new clients": many for m, many in found.items() if accurate or m == "loss"}


def _new_clients(group: SeedGroup, metric: str, when: Sequence[str]) -> list[float]:
    """A value a run for its clients that never trained, at the first of `when` that it knows; nan: none."""
    found = [run.summary.get("new_clients") or {} for run in group.runs]
    known: list[dict[str, Any]] = [next((new[w] for w in when if new.get(w)), {}) for new in found]
    return [_scale(metric) * float(k.get(metric, math.nan)) for k in known]


def _scale(metric: str) -> float:
    return 1.0 if metric == "loss" else 100.0


def _row(
    group: SeedGroup, column: str, values: list[float], paper: tuple[float, float | None] | None
) -> dict[str, Any]:
    mean, std = paper or (None, None)
    return {
        "method": group.method,
        "name": group.label if group.paper.get("values") else group.name,  # the paper's columns say the rest
        "column": column,
        "runs": len(values),
        "seeds": [seed_of(run) for run in group.runs],
        "values": values,
        "mean": float(np.mean(values)),
        "std": float(np.std(values, ddof=1)) if len(values) > 1 else None,
        "paper": mean,
        "paper_std": std,
    }


def overrides(run: StoredRun) -> list[str] | None:
    """What the run's command line said, but not how many ran at once; None where that was not kept."""
    path = run.path / ".hydra" / "overrides.yaml"
    found = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else None
    return None if found is None else [str(o) for o in found if _key(str(o)) != "jobs"]


def changed(runs: Sequence[StoredRun]) -> list[str]:
    """Overrides that make this another experiment than its file, such as rounds=20.

    What the file's own sweep varies, such as a partition, chooses a part of its table and is no change.
    """
    found = dict.fromkeys(o.lstrip("+") for run in runs for o in overrides(run) or [])
    free = {*FREE, *_swept(runs[0].config.get("experiment"))}
    return [o for o in found if not {_key(o), _key(o).split(".")[0]} & free]


def _swept(experiment: str | None) -> list[str]:
    """The keys that an experiment's file varies."""
    path = importlib.resources.files(CONF) / "experiment" / f"{experiment}.yaml"
    if experiment is None or not path.is_file():
        return []
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    return list(content.get("hydra", {}).get("sweeper", {}).get("params", {}))


def command(run: StoredRun) -> str:
    """The command line that makes this run again."""
    found = overrides(run)
    return "unknown" if found is None else shlex.join(["fedpers", "run", *_first(found)])


def commands(runs: Sequence[StoredRun]) -> list[str]:
    """Makes all runs again: a sweep for those that set the same keys and are a full grid; else each run."""
    alike: dict[frozenset[str], list[StoredRun]] = {}
    for run in runs:
        alike.setdefault(frozenset(_key(o) for o in overrides(run) or ()), []).append(run)
    return [line for part in alike.values() for line in _sweep(part)]


def _sweep(runs: Sequence[StoredRun]) -> list[str]:
    found = [overrides(run) for run in runs]
    if len(runs) == 1 or any(o is None for o in found):
        return sorted({command(run) for run in runs})
    tables = [{_key(o): o.partition("=")[2] for o in each or []} for each in found]
    values = {k: list(dict.fromkeys(t[k] for t in tables)) for k in tables[0]}
    grid = [dict(zip(values, point, strict=True)) for point in itertools.product(*values.values())]
    simple = all(len(many) == 1 or "," not in v for many in values.values() for v in many)
    if not simple or sorted(map(str, grid)) != sorted(str({k: t[k] for k in values}) for t in tables):
        return sorted({command(run) for run in runs})
    words = [f"{_sign(k)}{k}={','.join(many)}" for k, many in values.items()]
    return [shlex.join(["fedpers", "run", "-m", *_first(words)])]


def _first(words: Sequence[str]) -> list[str]:
    """The experiment before what changes it."""
    return sorted(words, key=lambda w: _key(w) != "experiment")


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+")


def _sign(key: str) -> str:
    return "+" if key == "experiment" else ""


def size(record: Mapping[str, Any]) -> str:
    """ "full size" (as its file has it), or what was changed, and of what data the machine had a part only.

    Measuring less often makes no run smaller.
    """
    words = "with" if record.get("paper") == {} else "reduced:"  # without a paper no size is the full one
    smaller = [o for o in record["changed"] if _key(o) != "eval_every"]
    part = [note.partition(";")[0] for note in record.get("notes", ()) if note.startswith(INCOMPLETE)]
    why = ", ".join([" ".join(smaller)] * bool(smaller) + part)
    return f"{words} {why}" if why else "full size"
