"""Ends a run by its own validation rows, so that a resumed run ends where the undisturbed one did."""

import math
from collections.abc import Sequence

from fedpers.config.stop import StopConfig
from fedpers.core.errors import ConfigError
from fedpers.flower.observer import Observer
from fedpers.results.files import CsvRow


class EarlyStop(Observer):
    """Asks for the end of the run once `config` says so.

    Args:
        config: when.
        rows: those of metrics.csv, which grow with the run; a resumed run's begin with what it had.
    """

    def __init__(self, config: StopConfig, rows: Sequence[CsvRow]) -> None:
        self.config, self.rows, self.why = config, rows, ""

    def should_stop(self, t: int) -> bool:
        """Whether the run has reached its target, or its patience is over.

        Raises:
            ConfigError: the evaluations have no such number on validation data.
        """
        if self.config.on:
            self.why = why(self.config, self.rows)
        return bool(self.why)


def why(config: StopConfig, rows: Sequence[CsvRow]) -> str:
    """Why a run with these rows has ended; empty if it goes on.

    Raises:
        ConfigError: an evaluation lacks the number.
    """
    values = {r["round"]: r.get(config.metric, math.nan) for r in rows if r["split"] == "valid"}
    tested = [r["round"] for r in rows if r["split"] == "test"]
    if tested and not any(v == v for v in values.values()):
        text = "no validation data has it; set data.valid_fraction, or choose another metric"
        raise ConfigError(f"stop.metric={config.metric}: {text}")
    best: tuple[int, float] | None = None
    since = 0
    for t, value in values.items():
        if config.reaches(value):
            return f"stop.target={config.target:g}: valid {config.metric} {value:.4g} in round {t}"
        if value == value and (best is None or config.better(value, best[1])):
            best, since = (t, value), 0
        elif best is not None:
            since += 1
        if config.patience is not None and best is not None and since >= config.patience:
            return (
                f"stop.patience={config.patience}: valid {config.metric} no better than {best[1]:.4g} "
                f"of round {best[0]}"
            )
    return ""
