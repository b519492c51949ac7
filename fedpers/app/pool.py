"""Many runs at once, each in a process of its own on one thread, under one display.

A run that dies takes no other with it; Ctrl-C and the death of this process end them all. What a run
leaves in its folder is the same in whatever process it is made, so a sweep goes on as any other does.
"""

import multiprocessing
import os
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

from fedpers.config.run_config import RunConfig
from fedpers.core.errors import FedpersError
from fedpers.flower.observer import Observer
from fedpers.flower.strategy import RoundLog
from fedpers.results.progress import SweepBoard

PRELOAD = [  # imported once, in a process that runs are forked from
    *("fedpers.app.run", "fedpers.app.backends", "fedpers.datasets.federation", "fedpers.method"),
    *("fedpers.engines.cohort", "fedpers.engines.inprocess_grid", "sklearn.datasets"),
]

SAFE = "PYTHONSAFEPATH"


@dataclass(frozen=True)
class Task:
    """A run to be made."""

    cfg: RunConfig
    out: Path
    words: tuple[str, ...] = ()  # the user's overrides, kept with the run
    label: str = ""
    trial: bool = False  # of a search: without pictures


class Crash(Exception):
    """A run failed by a bug, or its process died."""


Result = dict[str, Any] | Exception  # a summary, or why there is none


def run_all(tasks: Sequence[Task], jobs: int, board: SweepBoard) -> list[Result]:
    """Make all runs, `jobs` at once; a run that fails leaves the others alone.

    Returns:
        For each task the content of its summary.json, a FedpersError for a user's mistake, or a Crash.

    Raises:
        KeyboardInterrupt: Ctrl-C; no process is left.
    """
    results: dict[int, Result] = {}
    waiting = deque(enumerate(tasks))
    running: dict[Any, tuple[int, _Child]] = {}
    with tempfile.TemporaryDirectory(prefix="fedpers-") as folder:
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    i, task = waiting.popleft()
                    child = _Child(task, Path(folder) / str(i))
                    running[child.messages] = (i, child)
                    board.begin(i, task.label, task.cfg.rounds)
                for end in connection.wait(list(running)):
                    i, child = running[end]
                    result = child.hear(lambda t, score, i=i: board.step(i, t, score))  # type: ignore[misc]
                    if result is not None:
                        del running[end]
                        results[i] = result
                        board.end(i, _said(result, tasks[i].trial))
        finally:
            for _, child in running.values():
                child.stop()
    return [results[i] for i in range(len(tasks))]


def _said(result: Result, trial: bool) -> str:
    """How a run ended, in a few words; of a trial nobody is told test results."""
    if isinstance(result, Exception):
        return f"failed: {str(result).splitlines()[-1]}"
    found = result.get("best" if trial else "final") or {}
    names = ("valid_accuracy", "valid_loss") if trial else ("accuracy", "loss")
    known = [(m, found[m]) for m in names if isinstance(found.get(m), float)]
    return f"{known[0][0].replace('_', ' ')} {known[0][1]:.4f}" if known else "done"


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

    def __init__(self, task: Task, output: Path) -> None:
        methods = multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        if "forkserver" in methods:
            context.set_forkserver_preload(PRELOAD)
        self.output = output
        self.messages, theirs = context.Pipe(duplex=False)
        args = (task, theirs, str(output), dict(os.environ))
        self.process = context.Process(target=_work, args=args, daemon=False)
        with _no_code_of_the_current_folder():
            self.process.start()
        theirs.close()

    def hear(self, step: Callable[[int, str], None]) -> Result | None:
        """Take one message; the result where it was the last."""
        try:
            kind, *content = self.messages.recv()
        except (EOFError, OSError):
            self.process.join()
            return Crash(f"its process died ({_why(self.process.exitcode)}){self._last_words()}")
        if kind == "step":
            step(*content)
            return None
        self.process.join()
        self.messages.close()
        if kind == "done":
            summary: dict[str, Any] = content[0]
            return summary
        return FedpersError(content[0]) if kind == "mistake" else Crash(content[0])

    def stop(self) -> None:
        """End the process; its run can be gone on with."""
        self.process.terminate()
        self.process.join(10)
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
    """Sends how far the run is."""

    def __init__(self, send: Callable[[tuple[Any, ...]], None], split: str) -> None:
        self.send, self.split, self.score = send, split, ""

    def on_round(self, t: int, log: RoundLog) -> None:
        """A round is over."""
        self.send(("step", t, self.score))

    def on_evaluation(self, t: int, clients: dict[str, np.ndarray], arrays: dict[str, np.ndarray]) -> None:
        """Note how good the personal models are."""
        from fedpers.core.metrics import summarise

        if f"{self.split}_num" not in clients:
            return
        numbers = summarise(clients, self.split)
        known = numbers["accuracy"] == numbers["accuracy"]
        self.score = f"accuracy {numbers['accuracy']:.2%}" if known else f"loss {numbers['loss']:.4g}"


def _work(task: Task, messages: Any, output: str, environment: dict[str, str]) -> None:
    """Make the run; its last message is what came of it."""
    os.environ.clear()
    os.environ.update(environment, OMP_NUM_THREADS="1")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the parent ends this process
    threading.Thread(target=_die_with_parent, daemon=True).start()
    sys.stdout.flush()
    sys.stderr.flush()
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(file, stream)
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
    except Exception:
        return "crash", traceback.format_exc()


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
