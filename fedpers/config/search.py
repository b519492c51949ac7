"""What `fedpers run` does with many runs: how many at once, and which values a search may try."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep
from hydra.errors import HydraException

from fedpers.config import schema
from fedpers.core.bounds import bounds
from fedpers.core.errors import ConfigError

SPACE = "search"  # the key of a method's file that states its space


@dataclass(frozen=True)
class SweepConfig:
    """Keys of the command, not of a run."""

    jobs: int = 1  # runs at once, each in a process of its own
    tune: int = 0  # trials of each method's search; 0: none
    tune_seed: int = 1000  # of the search; the runs that follow have other ones

    def check(self) -> list[str]:
        """Problems of values."""
        return bounds(self, jobs=(1, None), tune=(0, None), tune_seed=(0, None))


KEYS = tuple(f.name for f in fields(SweepConfig))


def sweep_config(values: Mapping[str, Any], problems: list[str]) -> SweepConfig | None:
    """The keys of the command among those of a composed config; None with a problem noted."""
    return schema.build(SweepConfig, {k: values[k] for k in KEYS if k in values}, "", problems)


@dataclass(frozen=True)
class Dimension:
    """A key of a method and what it may be: some choices, or an interval."""

    key: str  # below `method.`
    choices: tuple[Any, ...] = ()
    low: Any = 0.0
    high: Any = 0.0
    log: bool = False

    def suggest(self, trial: Any) -> Any:
        """A value, drawn by a trial of Optuna's."""
        if self.choices:
            return trial.suggest_categorical(self.key, self.choices)
        draw = trial.suggest_int if isinstance(self.low, int) else trial.suggest_float
        return draw(self.key, self.low, self.high, log=self.log)

    def holds(self, value: Any) -> bool:
        """Whether a value is in it."""
        if self.choices:
            return any(value == c and isinstance(value, bool) == isinstance(c, bool) for c in self.choices)
        return isinstance(value, (int, float)) and self.low <= value <= self.high


def dimensions(lines: Sequence[str]) -> list[Dimension]:
    """A space from lines such as "local.lr=tag(log, interval(0.01, 0.3))" or "tau=choice(1, 5, 10)".

    >>> dimensions(["tau=choice(1, 5)", "rho=interval(0.1, 1.0)"])[1].high
    1.0

    Raises:
        ConfigError: a line is no choice and no interval.
    """
    return [_dimension(str(line)) for line in lines]


def _dimension(line: str) -> Dimension:
    try:
        override = OverridesParser.create().parse_override(line)
    except HydraException:
        value, key = None, line
    else:
        value, key = override.value(), override.key_or_group
    if isinstance(value, ChoiceSweep) and value.list:
        return Dimension(key, choices=tuple(value.list))
    if isinstance(value, IntervalSweep) and value.start is not None and value.end is not None:
        return Dimension(key, low=value.start, high=value.end, log="log" in value.tags)
    raise ConfigError(
        f"method.{SPACE}: '{line}' is no space; write KEY=choice(A, B), KEY=interval(LOW, HIGH), "
        f"KEY=int(interval(LOW, HIGH)) or KEY=tag(log, interval(LOW, HIGH))"
    )


def space_of(values: Mapping[str, Any], explicit: Sequence[str]) -> list[str]:
    """The lines of a composed config's space, but for the keys that the user set himself."""
    method = values.get("method") or {}
    own = (values.get("hyper") or {}).get(method.get("name")) or {}
    lines = [str(line) for line in own.get(SPACE, method.get(SPACE)) or ()]
    return [line for line in lines if f"method.{line.partition('=')[0].strip()}" not in explicit]
