"""Many runs at once, each in a process of its own on one thread, under one display.

A run that dies takes no other with it; Ctrl-C and the death of this process end them all. What a run
leaves in its folder is the same in whatever process it is made, so a sweep goes on as any other does.
"""

import multiprocessing
import os
import re
import signal
import sys
import tempfile
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any

import numpy as np

from fedpers.app import preemption
from fedpers.app.places import Place, Places
from fedpers.config.run_config import RunConfig
from fedpers.core import machine
from fedpers.core.errors import FedpersError
from fedpers.core.host import owned
from fedpers.engines.workers import WORKER_DIED
from fedpers.flower.observer import Observer
from fedpers.flower.strategy import RoundLog
from fedpers.results.progress import SweepBoard

PRELOAD = [  # imported once, in a process that runs are forked from
    *("fedpers.app.run", "fedpers.app.backends", "fedpers.datasets.federation", "fedpers.method"),
    *("fedpers.engines.cohort", "fedpers.engines.inprocess_grid", "sklearn.datasets"),
    "fedpers.results.plots.curves",
]

NO_MEMORY = re.compile(
    r"CUDA out of memory|torch\.OutOfMemoryError|CUDA error: out of memory|\bMemoryError\b|not enough memory"
    r"|can't allocate memory|Cannot allocate memory"
)  # as torch, CUDA, Python and Linux put it
LOOK, GRACE = 1.0, 60.0  # seconds between two looks for a signal; for runs to be saved after one
SAFE = "PYTHONSAFEPATH"


@dataclass(frozen=True)
class Task:
    """One run: its configuration and folder."""

    cfg: RunConfig
    out: Path
    words: tuple[str, ...] = ()  # the user's overrides, kept with the run
    label: str = ""
    trial: bool = False  # of a search: without pictures


class Crash(Exception):
    """A run failed by a bug, or its process died."""


class OutOfMemory(Crash):
    """A run failed because memory ran out, of its GPU or of the machine."""

    def __init__(self, text: str, of_host: bool) -> None:
        super().__init__(text)
        self.of_host = of_host


Result = dict[str, Any] | Exception  # a summary, or why there is none


def run_all(tasks: Sequence[Task], places: Places, board: SweepBoard) -> list[Result]:
    """Make all runs, as many at once as there are places; a run that fails leaves the others alone.

    One that ran out of memory is gone on with later, with fewer runs beside it; alone it fails.

    Returns:
        For each task the content of its summary.json, a FedpersError for a user's mistake, or a Crash.

    Raises:
        KeyboardInterrupt: Ctrl-C; no process is left.
    """
    results: dict[int, Result] = {}
    waiting = deque(enumerate(tasks))
    running: dict[Any, tuple[int, _Child, Place]] = {}
    with tempfile.TemporaryDirectory(prefix="fedpers-") as folder:
        try:
            while waiting or running:
                if preemption.asked():
                    raise preemption.Preempted
                for i, task, place in _placed(waiting, places):
                    child = _Child(task, Path(folder) / str(i), place)
                    running[child.messages] = (i, child, place)
                    board.begin(i, task.label, task.cfg.rounds, place.name)
                for end in connection.wait(list(running), LOOK):
                    i, child, place = running[end]
                    result = child.hear(lambda t, score, i=i: board.step(i, t, score))  # type: ignore[misc]
                    if result is None:
                        continue
                    del running[end]
                    beside = places.fewer(place, result.of_host) if isinstance(result, OutOfMemory) else 0
                    places.leave(place)
                    if beside:
                        waiting.appendleft((i, tasks[i]))
                        board.again(i, f"out of memory beside {beside} others; put back")
                    else:
                        results[i] = result
                        board.end(i, _said(result, tasks[i].trial))
        finally:
            for _, child, _ in running.values():
                child.process.terminate()
            for _, child, _ in running.values():
                child.stop(GRACE if preemption.asked() else 0.0)
    return [results[i] for i in range(len(tasks))]


def _placed(waiting: deque[tuple[int, Task]], places: Places) -> Iterator[tuple[int, Task, Place]]:
    """Yield the runs for which there is a place now, and remove them from `waiting`."""
    for i, task in list(waiting):
        place = places.take(task.cfg)
        if place is not None:
            waiting.remove((i, task))
            yield i, task, place


def _said(result: Result, trial: bool) -> str:
    """How a run ended, in a few words; for a trial of a search without test results."""
    if isinstance(result, Exception):
        return f"failed: {str(result).splitlines()[-1]}"
    found = result.get("best" if trial else "final") or {}
    names = ("valid_accuracy", "valid_loss") if trial else ("accuracy", "loss")
    known = [(m, found[m]) for m in names if isinstance(found.get(m), float)]
    nothing = "no validation samples" if trial else "done"
    return f"{known[0][0].replace('_', ' ')} {known[0][1]:.4f}" if known else nothing


@contextmanager
def _no_code_of_the_current_folder() -> Iterator[None]:
    """Python before 3.11.9 and 3.12.3 starts a forkserver that imports from where the user is first.

    In the folder of another source tree the runs would be made by its code.
    """
    before = os.environ.get(SAFE)
    os.environ[SAFE] = "1"
    try:
        yield
    finally:
        os.environ.pop(SAFE)
        if before is not None:
            os.environ[SAFE] = before


class _Child:
    """The process of one run, as this process sees it."""

    def __init__(self, task: Task, output: Path, place: Place) -> None:
        methods = multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        if "forkserver" in methods:
            context.set_forkserver_preload(PRELOAD)
        self.output, self.killed_before = output, machine.killed_for_memory()
        self.messages, theirs = context.Pipe(duplex=False)
        args = (task, theirs, str(output), dict(os.environ) | place.environment())
        self.process = context.Process(target=_work, args=args, daemon=False)
        with _no_code_of_the_current_folder():
            self.process.start()
        theirs.close()

    def hear(self, step: Callable[[int, str], None]) -> Result | None:
        """Read one message of the child; returns the run's result if it was the last message, else None."""
        try:
            kind, *content = self.messages.recv()
        except (EOFError, OSError):
            self.process.join()
            text = f"its process died ({_why(self.process.exitcode)}){self._last_words()}"
            by_linux = self.process.exitcode == -signal.SIGKILL and self._memory_ran_out()
            return OutOfMemory(text, of_host=True) if by_linux else Crash(text)
        if kind == "step":
            step(*content)
            return None
        self.process.join()
        self.messages.close()
        if kind == "done":
            summary: dict[str, Any] = content[0]
            return summary
        text = content[0]
        if WORKER_DIED in text and self._memory_ran_out():
            return OutOfMemory(text, of_host=True)
        if memory := NO_MEMORY.search(text):
            return OutOfMemory(text, of_host="CUDA" not in memory[0] and "torch.O" not in memory[0])
        return FedpersError(text) if kind == "mistake" else Crash(text)

    def _memory_ran_out(self) -> bool:
        """Whether Linux's out-of-memory killer ended some process since this child began."""
        return machine.killed_for_memory() > self.killed_before

    def stop(self, grace: float) -> None:
        """End the process after at most `grace` seconds, in which it can save its run."""
        self.process.join(grace)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def _last_words(self) -> str:
        lines = self.output.read_text(errors="replace").splitlines() if self.output.exists() else []
        return "\n".join(["", *lines[-5:]]) if lines else ""


def _why(status: int | None) -> str:
    if status is not None and status < 0:
        name = signal.Signals(-status).name
        return f"{name}: by hand, or for want of memory" if name == "SIGKILL" else name
    return f"status {status}"


# ---- in the run's process -------------------------------------------------------------------------


class _Teller(Observer):
    """An observer that sends the run's progress to the parent process."""

    def __init__(self, send: Callable[[tuple[Any, ...]], None], split: str) -> None:
        self.send, self.split, self.score = send, split, ""

    def on_round(self, t: int, log: RoundLog) -> None:
        """Send that round t is over."""
        self.send(("step", t, self.score))

    def on_evaluation(self, t: int, clients: dict[str, np.ndarray], arrays: dict[str, np.ndarray]) -> None:
        """Keep the personal models' accuracy (or loss) for the next message."""
        from fedpers.core.metrics import summarise

        if f"{self.split}_num" not in clients:
            return
        numbers = summarise(clients, self.split)
        known = numbers["accuracy"] == numbers["accuracy"]
        self.score = f"accuracy {numbers['accuracy']:.2%}" if known else f"loss {numbers['loss']:.4g}"


def _work(task: Task, messages: Any, output: str, environment: dict[str, str]) -> None:
    """Make the run in this child process; the last message is its result."""
    os.environ.clear()
    os.environ.update(environment, OMP_NUM_THREADS="1")
    owned()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the parent ends this process
    threading.Thread(target=_die_with_parent, daemon=True).start()
    sys.stdout.flush()
    sys.stderr.flush()
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(file, stream)
    with preemption.heeded():
        messages.send(_outcome(task, messages.send))


def _outcome(task: Task, send: Callable[[tuple[Any, ...]], None]) -> tuple[Any, ...]:
    import torch

    from fedpers.app import run
    from fedpers.results.files import plain

    torch.set_num_threads(1)
    observers = [_Teller(send, "valid" if task.trial else "test")]
    options: dict[str, Any] = {"repeat": True, "command": task.words, "observers": observers}
    try:
        summary = run.execute(task.cfg, task.out, **options, pictures=not task.trial, own_process=True)
        return "done", plain(summary)
    except (FedpersError, OSError) as error:
        return "mistake", str(error) or type(error).__name__
    except preemption.Preempted:
        return "mistake", "saved and ended by a signal"
    except Exception:
        return "crash", traceback.format_exc()


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
