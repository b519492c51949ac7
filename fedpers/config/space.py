"""How a method's space is written: in the words of Hydra's sweeps, `choice` and `interval`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep
from hydra.errors import HydraException
from scipy.stats import qmc

from fedpers.config.search import SPACE
from fedpers.core.errors import ConfigError


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

    def at(self, part: float) -> Any:
        """The value at a part of the way through it, 0 <= part < 1."""
        if self.choices:
            return self.choices[int(part * len(self.choices))]
        if self.log:
            value = self.low * (self.high / self.low) ** part
        else:
            value = self.low + part * (self.high - self.low)
        return round(value) if isinstance(self.low, int) else value

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


def design(space: Sequence[Dimension], count: int) -> list[dict[str, Any]]:
    """`count` points that cover a space evenly: Halton's sequence, each coordinate in a base of its own.

    So methods that begin with the same keys, as most do with `local.lr`, try the same values of them, and
    none is better than another because its search drew better.
    """
    points = qmc.Halton(len(space), scramble=False).random(count + 1)[1:]  # the first is the corner
    return [{d.key: d.at(float(u)) for d, u in zip(space, point, strict=True)} for point in points]


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
        f"method.{SPACE}: '{line}' is no search space; write KEY=choice(A, B), KEY=interval(LOW, HIGH), "
        f"KEY=int(interval(LOW, HIGH)) or KEY=tag(log, interval(LOW, HIGH))"
    )
