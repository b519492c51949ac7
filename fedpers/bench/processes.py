"""A command in a process of its own, and the memory that it and its descendants take."""

import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil


def watched(
    command: Sequence[str], env: dict[str, str], timeout: float = 1800, cwd: Path | None = None
) -> tuple[str, float]:
    """(all output, peak MB) of a command, which is killed after `timeout` seconds."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, cwd=cwd
    )
    peak = Peak(process.pid)
    try:
        text, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        text, _ = process.communicate()
    peak.stop()
    return text, peak.megabytes


class Peak:
    """Largest memory of a process and its descendants, looked at every second."""

    def __init__(self, pid: int) -> None:
        self.process, self.megabytes, self._stop = psutil.Process(pid), 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(1.0):
            with suppress(psutil.Error):
                family = [self.process, *self.process.children(recursive=True)]
                self.megabytes = max(self.megabytes, sum(map(memory, family)) / 2**20)

    def stop(self) -> None:
        """End the thread that measures."""
        self._stop.set()
        self._thread.join()


def memory(process: psutil.Process) -> int:
    """Bytes of a process: its proportional share of all pages but mapped files'; 0 once it has ended."""
    with suppress(psutil.Error):
        maps = process.memory_maps()
        return sum(m.pss for m in maps if m.path.startswith("/dev/shm") or not Path(m.path).is_file())
    return 0
