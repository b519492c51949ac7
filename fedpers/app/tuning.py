"""`tune=N`: a search of each method's own space on validation data alone, then runs with what it found.

A search is replayed and not stored: the same seed asks for the same trials as long as they come out the
same, and a trial that is finished is read from its folder. So a search that was killed goes on as a sweep
does. Trials are asked for in batches of a fixed size, so that they do not depend on how many run at once.
"""

import json
import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedpers.app.pool import Result, Task
from fedpers.config.run_config import from_mapping, to_mapping
from fedpers.config.search import SweepConfig
from fedpers.config.space import Dimension, design, dimensions
from fedpers.core.errors import ConfigError, FedpersError
from fedpers.results.files import plain, replace_json
from fedpers.results.report.runs import SEARCH

BATCH = 4  # trials asked for at once
UNJUDGED = "no client has validation samples; give a larger data.valid_fraction, or leave tune= out"
DESIGN = 10  # first trials, which are laid out and not drawn; Optuna's model of the space needs as many
Values = dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """The values of one trial, and its validation score."""

    values: Mapping[str, Any]  # by key below `method.`
    score: tuple[float, float] | None  # larger is better; None: the run failed or diverged
    note: str = ""


@dataclass
class Search:
    """The search for one method in one setting, whose runs differ in their seed alone."""

    name: str
    runs: list[Task]  # those to be made with what is found
    space: list[Dimension]
    sweep: SweepConfig
    root: Path
    trials: list[Trial] = field(default_factory=list)

    def __post_init__(self) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.folder = self.root / SEARCH / self.name
        sampler = optuna.samplers.TPESampler(n_startup_trials=DESIGN, seed=self.sweep.tune_seed)
        self.study = optuna.create_study(direction="maximize", sampler=sampler)
        start = self._at_start()
        first = [start] if all(d.holds(start[d.key]) for d in self.space) else []
        for values in [*first, *design(self.space, DESIGN - len(first))]:
            self.study.enqueue_trial(values)
        self._open: list[tuple[Any, Values]] = []

    @property
    def left(self) -> int:
        """The number of trials to come; none once there was no validation sample to judge one by."""
        judged = all(t.note != UNJUDGED for t in self.trials)
        return self.sweep.tune - len(self.trials) if judged else 0

    def ask(self) -> list[Task]:
        """The runs of the next batch of trials; trials whose values were tried before are not run again.

        Raises:
            ConfigError: the search was begun with other versions of what chooses its trials.
        """
        self._check_versions()
        for _ in range(min(BATCH, self.left)):
            trial = self.study.ask()
            self._open.append((trial, {d.key: d.suggest(trial) for d in self.space}))
        known = [t.values for t in self.trials]
        tasks: list[Task] = []
        for values in (v for _, v in self._open):
            if values not in known:
                tasks.append(self._task(len(self.trials) + len(tasks), values))
                known.append(values)
        return tasks

    def tell(self, results: Sequence[Result]) -> None:
        """Take the results of the runs that `ask` returned, in their order."""
        import optuna

        new = iter(results)
        for trial, values in self._open:
            before = next((t for t in self.trials if t.values == values), None)
            done = before or _valued(values, next(new))
            self.trials.append(done)
            if done.score is None:
                self.study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                self.study.tell(trial, done.score[0])
        self._open = []

    def winner(self) -> Values:
        """The values with the best validation score; of equal ones the first.

        Raises:
            FedpersError: every trial failed.
        """
        good = [t for t in self.trials if t.score is not None]
        if not good:
            reasons = "; ".join(dict.fromkeys(t.note for t in self.trials))
            raise FedpersError(f"tune={self.sweep.tune}: every trial failed: {reasons}")
        return dict(max(good, key=lambda t: t.score or (-math.inf, -math.inf)).values)

    def finish(self) -> list[Task]:
        """Write search.json; returns the runs with the values found."""
        found = self.winner()
        content = {
            "name": self.name,
            "method": self.runs[0].cfg.method_name,
            "seed": self.sweep.tune_seed,
            "runs": [task.out.name for task in self.runs],
            "space": [str(d.key) for d in self.space],
            "trials": [
                {"values": t.values, "score": t.score and t.score[0], "note": t.note} for t in self.trials
            ],
            "found": found,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_json(self.folder / "search.json", plain(content))
        return [replace(task, cfg=_with(task, found)) for task in self.runs]

    def _check_versions(self) -> None:
        """Refuse to replay a search by a sampler that may choose otherwise; a new one notes its versions."""
        path, here = self.folder / "versions.json", {n: version(n) for n in ("optuna", "scipy", "numpy")}
        there = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else here
        differing = [f"{n} {there.get(n)} there, {v} here" for n, v in here.items() if there.get(n) != v]
        if differing:
            text = f"the search was begun with other versions ({'; '.join(differing)})"
            raise ConfigError(f"tune: {self.folder}: {text}; install those, or choose another out=")
        if not path.is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_json(path, here)

    def _at_start(self) -> Values:
        """The values of the run as it was asked for."""
        method = to_mapping(self.runs[0].cfg)["method"]
        return {d.key: _at(method, d.key) for d in self.space}

    def _task(self, i: int, values: Values) -> Task:
        first = self.runs[0]
        cfg = replace(_with(first, values), seed=self.sweep.tune_seed)
        label = f"{self.name} trial {i + 1}"
        return Task(cfg, self.folder / f"trial={i}", (), label, trial=True)


def searches(
    tasks: Sequence[Task], spaces: Sequence[Sequence[str]], sweep: SweepConfig, root: Path
) -> list[Search]:
    """A search for each group of tasks that differ in their seed alone; `spaces` has a space a task.

    Raises:
        ConfigError: a space cannot be read or has a key that the method lacks, a seed is the search's
            own, or there is no validation data.
    """
    groups: dict[str, list[int]] = {}
    for i, task in enumerate(tasks):
        groups.setdefault(_cell(task), []).append(i)
    own = [task.label for task in tasks if task.cfg.seed == sweep.tune_seed]
    if own:
        text = "that seed is the search's, and what it found must be judged on others"
        raise ConfigError(f"seed={sweep.tune_seed}: {text}; choose another, or another tune_seed=")
    for task in tasks:
        if not task.cfg.data.valid_fraction:
            text = "the search goes by validation data, and there is none"
            raise ConfigError(f"tune={sweep.tune}: {text}; set data.valid_fraction, such as 0.1")
    return [
        Search(
            _name(tasks[many[0]]),
            [tasks[i] for i in many],
            _space(tasks[many[0]], spaces[many[0]]),
            sweep,
            root,
        )
        for many in groups.values()
    ]


def _space(task: Task, lines: Sequence[str]) -> list[Dimension]:
    found, method = dimensions(lines), to_mapping(task.cfg)["method"]
    name = task.cfg.method_name
    if not found:
        raise ConfigError(
            f"tune: method={name} has no space to search, or all of it is fixed; "
            "give one: 'method.search=[\"local.lr=tag(log,interval(0.01,0.3))\"]'"
        )
    for d in found:
        _at(method, d.key)
    return found


def _at(values: Any, key: str) -> Any:
    """The value at a dotted key of nested mappings.

    Raises:
        ConfigError: there is no such key.
    """
    for part in key.split("."):
        if not isinstance(values, Mapping) or part not in values:
            raise ConfigError(f"method.search: the method has no key {key}")
        values = values[part]
    return values


def _with(task: Task, values: Mapping[str, Any]) -> Any:
    """The task's run with other values of its method.

    Raises:
        ConfigError: the method refuses them.
    """
    whole = deepcopy(to_mapping(task.cfg))
    for key, value in values.items():
        node = whole["method"]
        *above, last = key.split(".")
        for part in above:
            node = node[part]
        node[last] = value
    return from_mapping(whole)


def _cell(task: Task) -> str:
    """The configuration without its seed: equal for runs that differ in their seed alone."""
    whole = {k: v for k, v in to_mapping(task.cfg).items() if k not in ("seed", "out")}
    return json.dumps(whole, sort_keys=True)


def _name(task: Task) -> str:
    """The run's folder or method, without its seed."""
    parts = [p for p in task.label.split(",") if not p.startswith("seed=")]
    return ",".join(parts) or task.cfg.method_name


def _valued(values: Values, result: Result) -> Trial:
    if isinstance(result, Exception):
        return Trial(values, None, str(result).splitlines()[-1])
    best = result.get("best")
    if not best:
        return Trial(values, None, "training diverged" if result.get("diverged") else UNJUDGED)
    loss, accuracy = best.get("valid_loss"), best.get("valid_accuracy")
    if loss is None or not math.isfinite(loss):  # of a client at least
        return Trial(values, None, "training diverged")
    return Trial(values, (-float(loss), 0.0) if accuracy is None else (float(accuracy), -float(loss)))
