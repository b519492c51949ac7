"""What a user sees while a run goes on, or while a data set is downloaded."""

import logging
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from fedpers.core.logs import wants_json
from fedpers.core.metrics import summarise
from fedpers.flower.strategy import Observer, RoundLog

log = logging.getLogger("fedpers")
QUIET = 2.0  # seconds between two lines where there is no terminal


class ProgressBar(Observer):
    """A bar with the personalised accuracy, as the run reports it; plain lines without a terminal.

    Use it as a context manager.

    Args:
        title: the method's name.
        rounds: the rounds of the whole run.
        start: the rounds that a resumed run has behind it.
    """

    def __init__(self, title: str, rounds: int, start: int = 0, console: Console | None = None) -> None:
        self.console = console or Console(stderr=sys.stderr.isatty())  # plain lines: to stdout
        self.title, self.rounds = title, rounds
        self._last_line = 0.0
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[score]}"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task(title, total=rounds, completed=start, score="")

    def __enter__(self) -> "ProgressBar":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def on_round(self, t: int, log: RoundLog) -> None:
        """One step further."""
        self._bar.update(self._task, completed=t)

    def on_evaluation(self, t: int, clients: dict[str, np.ndarray], arrays: dict[str, np.ndarray]) -> None:
        """Show how good the personal models are."""
        numbers = summarise(clients, "test")
        score = self._score(numbers)
        if self.console.is_terminal:
            self._bar.update(self._task, score=score)
        elif time.monotonic() - self._last_line > QUIET or t == self.rounds:
            self._last_line = time.monotonic()
            text = f"{self.title}: round {t}/{self.rounds}  {score}"
            if wants_json():  # programs read: all that is printed is records
                log.info(text, extra={"round": t, **{k: v for k, v in numbers.items() if v == v}})
            else:
                self.console.print(text, highlight=False, soft_wrap=True)

    def _score(self, numbers: dict[str, float]) -> str:
        accuracy = numbers["accuracy"]
        if math.isnan(accuracy):
            return f"loss {numbers['loss']:.4g}"
        return f"accuracy {accuracy:.2%}"


@contextmanager
def download_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar for a download: call what it yields with (bytes so far, bytes in all or 0)."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bar = Progress(*columns, console=Console(stderr=True))
    task = bar.add_task(title, total=None)

    def update(done: int, total: int) -> None:
        bar.start()  # not before there is something to show
        bar.update(task, completed=done, total=total or None)

    try:
        yield update
    finally:
        if bar.live.is_started:
            bar.stop()


class SweepBoard:
    """One display of many runs: all of them, and those that go on; without a terminal a line a finished run.

    Use it as a context manager.

    Args:
        runs: how many runs there will be.
        rounds: how many rounds all runs will have together.
    """

    def __init__(self, runs: int, rounds: int, console: Console | None = None) -> None:
        self.console = console or Console(stderr=sys.stderr.isatty())
        self.runs, self.rounds, self.done = runs, rounds, 0
        self._began, self._ended = time.monotonic(), 0  # rounds of the runs that have ended
        self._now: dict[int, tuple[Any, str, int, int]] = {}  # task of rich, label, rounds, round
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f} rounds"),
            TextColumn("{task.fields[score]}"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
            transient=True,
        )
        self._all = self._bar.add_task("", total=max(rounds, 1), score="")

    def __enter__(self) -> "SweepBoard":
        self._bar.start()
        self._refresh()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, i: int, label: str, rounds: int, where: str = "") -> None:
        """Run `i` begins; `where` names its GPU."""
        label = f"{label} ({where})" if where else label
        task = self._bar.add_task(f"  {label}", total=rounds, score="")
        self._now[i] = (task, label, rounds, 0)

    def step(self, i: int, t: int, score: str) -> None:
        """Run `i` has done round t."""
        task, label, rounds, _ = self._now[i]
        self._now[i] = (task, label, rounds, t)
        self._bar.update(task, completed=t, score=score)
        self._refresh()

    def again(self, i: int, text: str) -> None:
        """Run `i` has ended and will begin once more; `text` says why."""
        task, label, _, _ = self._now.pop(i)
        self._bar.remove_task(task)
        self.console.print(f"{label}: {text}", highlight=False, markup=False, soft_wrap=True)
        self._refresh()

    def end(self, i: int, text: str) -> None:
        """Run `i` has ended; `text` says how."""
        task, label, rounds, _ = self._now.pop(i)
        self._bar.remove_task(task)
        self._ended += rounds
        self.done += 1
        left = "" if self.console.is_terminal or self.done == self.runs else f"  ({self._left()} left)"
        line = f"[{self.done}/{self.runs}] {label}: {text}{left}"
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)
        self._refresh()

    def skip(self, runs: int, rounds: int) -> None:
        """So many runs that were planned need not be made."""
        self.runs, self.rounds = self.runs - runs, self.rounds - rounds
        self._bar.update(self._all, total=max(self.rounds, 1))

    def _refresh(self) -> None:
        running = sum(t for *_, t in self._now.values())
        text = f"{self.done} of {self.runs} runs done"
        self._bar.update(self._all, completed=self._ended + running, description=text)

    def _left(self) -> str:
        seconds = (time.monotonic() - self._began) * (self.rounds - self._ended) / max(self._ended, 1)
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes}:{rest:02d}"
