"""Observers of a run: those of fedpers, and the user's, whose errors do not end the run."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedpers.config.observers import observer_class
from fedpers.core.errors import ConfigError
from fedpers.flower.observer import Observer, RoundLog

log = logging.getLogger("fedpers")


class Observers(Observer):
    """Several observers, told in order."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self.observers = list(observers)
        self.stopped_by = ""  # who or what asked to stop

    def on_start(self, out: Path, config: Mapping[str, Any]) -> None:
        """Pass on."""
        self._tell("on_start", out, config)

    def on_round(self, t: int, log: RoundLog) -> None:
        """Pass on."""
        self._tell("on_round", t, log)

    def on_evaluation(self, t: int, clients: dict[str, np.ndarray], arrays: dict[str, np.ndarray]) -> None:
        """Pass on."""
        self._tell("on_evaluation", t, clients, arrays)

    def on_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Pass on."""
        self._tell("on_rows", rows)

    def should_stop(self, t: int) -> bool:
        """Ask all of them."""
        asked = [o for o in self.observers if self._asks(o, t)]
        self.stopped_by = self.stopped_by or (_reason(asked[0]) if asked else "")
        return bool(asked)

    def _asks(self, observer: Observer, t: int) -> bool:
        return observer.should_stop(t)

    def after_round(self, t: int) -> None:
        """Pass on."""
        self._tell("after_round", t)

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Pass on."""
        self._tell("on_end", summary)

    def _tell(self, event: str, *what: Any) -> None:
        for o in self.observers:
            getattr(o, event)(*what)


class UserObservers(Observers):
    """Observers of the user: one that fails is logged and counted, and the run goes on.

    One that cannot begin and says what to do about it (a ConfigError) ends the run before its first round.
    """

    def __init__(self, observers: Iterable[Observer]) -> None:
        super().__init__(observers)
        self.failures: Counter[str] = Counter()  # by the class's name

    def _tell(self, event: str, *what: Any) -> None:
        for o in self.observers:
            self._guarded(o, event, *what)

    def _asks(self, observer: Observer, t: int) -> bool:
        return bool(self._guarded(observer, "should_stop", t))

    def _guarded(self, observer: Observer, event: str, *what: Any) -> Any:
        name = type(observer).__name__
        try:
            return getattr(observer, event)(*what)
        except Exception as error:  # whatever a foreign class does: no run is lost by it
            if event == "on_start" and isinstance(error, ConfigError):
                raise
            if not self.failures[name]:  # the first in full, the others are counted
                log.warning("observer %s failed in %s; the run goes on", name, event, exc_info=error)
            self.failures[name] += 1
            return None


def _reason(observer: Observer) -> str:
    """Why an observer asked to stop, in its words, or its name."""
    said = str(getattr(observer, "why", "") or getattr(observer, "stopped_by", ""))
    return said or f"asked for by {type(observer).__name__}"


def user_observers(specs: Sequence[str], given: Sequence[Observer] = ()) -> UserObservers:
    """The observers named by `specs` (a known name or "pkg.mod:Class", made without arguments), then `given`.

    Raises:
        ConfigError: one cannot be made, or is no Observer.
    """
    found: list[Observer] = [*given]
    for spec in specs:
        try:
            found.append(observer_class(spec)())
        except ConfigError:
            raise
        except Exception as error:  # whatever a foreign class does while it is made
            raise ConfigError(f"observers: '{spec}' cannot be made without arguments: {error!r}") from error
    for each in found:
        if not isinstance(each, Observer):
            text = f"{type(each).__name__} is no fedpers.Observer; derive it from that class"
            raise ConfigError(f"observers: {text}")
    return UserObservers(found)
