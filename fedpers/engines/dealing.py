"""Divides clients among processes: those with most work first, by the processes' latest speeds."""

import statistics
from collections import deque
from collections.abc import Sequence

RECENT = 5  # exchanges of which the median counts: the load of a machine changes
LEAST = 0.25  # of the fastest process's speed: what a slower one is taken for, so that it is seen again


class Speeds:
    """Work per second of several processes, as measured in exchanges of one kind."""

    def __init__(self, count: int) -> None:
        self._seen: list[deque[float]] = [deque(maxlen=RECENT) for _ in range(count)]

    def add(self, worker: int, work: float, seconds: float) -> None:
        """Note that a process took `seconds` for `work`."""
        if work > 0 and seconds > 0:
            self._seen[worker].append(work / seconds)

    def relative(self) -> list[float]:
        """Speeds divided by the fastest one's; all equal until each process was measured."""
        if not all(self._seen):
            return [1.0] * len(self._seen)
        found = [statistics.median(seen) for seen in self._seen]
        return [max(speed / max(found), LEAST) for speed in found]


def balance(weights: Sequence[float], speeds: Sequence[float]) -> list[list[int]]:
    """The items of each worker: in order of falling weight, each to the worker that would finish it first."""
    shares: list[list[int]] = [[] for _ in speeds]
    loads = [0.0] * len(speeds)
    for i in sorted(range(len(weights)), key=lambda i: (-weights[i], i)):
        done = [(load + weights[i]) / speed for load, speed in zip(loads, speeds, strict=True)]
        first = done.index(min(done))
        shares[first].append(i)
        loads[first] += weights[i]
    return [sorted(share) for share in shares]
