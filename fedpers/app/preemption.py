"""On a scheduler's signal the run is saved after its round and ends, so that it can continue elsewhere.

Slurm sends SIGTERM, or what `sbatch --signal` names, some time before it takes the machine away. The second
signal ends the process at once.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))
_asked: list[int] = []  # of this process


class Preempted(KeyboardInterrupt):
    """A signal asked the run to end; it was saved first."""


@contextmanager
def heeded() -> Iterator[None]:
    """Handle SIGTERM and SIGUSR1 while this is open; a handler of somebody else (submitit) is kept."""
    main = threading.current_thread() is threading.main_thread()
    free = [s for s in SIGNALS if main and signal.getsignal(s) is signal.SIG_DFL]
    for s in free:
        signal.signal(s, _note)
    try:
        yield
    finally:
        for s in free:
            signal.signal(s, signal.SIG_DFL)
        _asked.clear()


def asked() -> str:
    """The name of the signal that was received; "" if none was."""
    return signal.Signals(_asked[0]).name if _asked else ""


def status() -> int:
    """The exit status of a process that ends because of the signal: 128 + its number."""
    return 128 + (_asked[0] if _asked else signal.SIGTERM)


def restarted() -> bool:
    """Whether Slurm has restarted this job, so that an unfinished run in the folder is this command's own."""
    return os.environ.get("SLURM_RESTART_COUNT", "0") not in ("", "0")


def _note(number: int, frame: object) -> None:
    _asked.append(number)
    signal.signal(number, signal.SIG_DFL)
