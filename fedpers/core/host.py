"""The process that a run is made in: its owner's, or the run's own.

A library that is called borrows its host's process: what a run wants set is set while it lasts, and is as
it was afterwards. What cannot be set back (malloc's policy) is set in processes that exist for a run alone:
the command line's, workers, Ray's actors, devices' clients.
"""

import importlib
import logging
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedpers.core.memory import keep_freed

WANTED = {  # environment variables, unless the owner has set them
    # MKL rounds by where a matrix lies in memory (seen on AMD processors, matrices of under 4 rows), unless
    # it is asked not to; that costs nothing measurable. It reads this once, at the process' first product.
    "MKL_CBWR": "AUTO,STRICT",
    # Flower and Ray report usage, look for updates and install packages unless they are told not to.
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
# What Flower and Ray set themselves begins with one of these, or is PYTHONPATH and PYTHONBREAKPOINT of Ray's.
FOREIGN = ("MKL_CBWR", "FLWR_", "RAY_", "GRPC_", "PYTHONPATH", "PYTHONBREAKPOINT")


class _Borrowed:
    """How many runs this process makes now; the first one sets, and the last one sets back."""

    lock = threading.Lock()
    runs = 0
    variables: dict[str, str] = {}  # noqa: RUF012  (one a process)


@contextmanager
def borrowed() -> Iterator[None]:
    """Set the process up for a run (environment, modules of the current folder) and restore it afterwards.

    The global generators of random, NumPy and torch go on where they were: screens draw numbers, too.
    """
    with _environment(), _generators(), current_folder():
        yield


def owned() -> None:
    """Set the process up for a run permanently; only for processes that were started for it."""
    for name, value in WANTED.items():
        os.environ.setdefault(name, value)
    if not _finds_current_folder():
        sys.path.append(str(Path.cwd()))
    keep_freed()


@contextmanager
def current_folder() -> Iterator[None]:
    """While this is open, the current folder's modules can be imported; a command's path begins elsewhere."""
    here, added = str(Path.cwd()), not _finds_current_folder()
    if added:
        sys.path.append(here)
    try:
        yield
    finally:
        if added and here in sys.path:
            sys.path.remove(here)


def from_import_path(place: str) -> Any:
    """What "package.module:name" names; modules of the current folder are found too.

    Raises:
        Exception: whatever somebody's code raises while it is imported; AttributeError: it has no such name.
    """
    module, _, name = place.partition(":")
    with current_folder():
        return getattr(importlib.import_module(module), name)


def _finds_current_folder() -> bool:
    return "" in sys.path or str(Path.cwd()) in sys.path


@contextmanager
def _environment() -> Iterator[None]:
    with _Borrowed.lock:
        if not _Borrowed.runs:
            _Borrowed.variables = _foreign()
            for name, value in WANTED.items():
                os.environ.setdefault(name, value)
        _Borrowed.runs += 1
    try:
        yield
    finally:
        with _Borrowed.lock:
            _Borrowed.runs -= 1
            if not _Borrowed.runs:
                for name in _foreign().keys() - _Borrowed.variables.keys():
                    del os.environ[name]
                os.environ.update(_Borrowed.variables)


def _foreign() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(FOREIGN)}


@contextmanager
def _generators() -> Iterator[None]:
    import numpy as np
    import torch

    ours, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  (the host's)
    torchs = torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(ours)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(torchs)


@contextmanager
def told_errors_only() -> Iterator[None]:
    """Show errors alone while this is open; afterwards warnings, loggers and SIGTERM are handled as before.

    For calls of libraries that set up their own logging, and other people's with it.
    """
    named = logging.root.manager.loggerDict.values()
    known = [logging.root, *(x for x in named if isinstance(x, logging.Logger))]
    before = [(x, x.level, x.propagate, x.disabled, list(x.handlers)) for x in known]
    main = threading.current_thread() is threading.main_thread()
    stop = signal.getsignal(signal.SIGTERM) if main else None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level, propagate, disabled, handlers in before:
            logger.setLevel(level)
            logger.propagate, logger.disabled, logger.handlers = propagate, disabled, handlers
        if stop is not None:
            signal.signal(signal.SIGTERM, stop)
