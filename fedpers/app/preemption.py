"""What a scheduler asks by a signal: save the run after its round, and end, so that it can go on elsewhere.

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
    """The run was saved and ended, as a signal asked."""


@contextmanager
def heeded() -> Iterator[None]:
    """Heed SIGTERM and SIGUSR1 in here, unless somebody else does already, such as submitit."""
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
    """The signal's name, once there was one; else empty."""
    return signal.Signals(_asked[0]).name if _asked else ""


def status() -> int:
    """Of a process that ends for it, as a shell tells it."""
    return 128 + (_asked[0] if _asked else signal.SIGTERM)


def restarted() -> bool:
    """Whether Slurm runs this job once more, so that the same command finds its own beginnings."""
    return os.environ.get("SLURM_RESTART_COUNT", "0") not in ("", "0")


def _note(number: int, frame: object) -> None:
    _asked.append(number)
    signal.signal(number, signal.SIG_DFL)
