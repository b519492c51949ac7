"""Which process serves which clients: the heaviest first, by how fast each process was of late."""

import statistics
from collections import deque
from collections.abc import Sequence

RECENT = 5  # exchanges of which the median counts: the load of a machine changes
LEAST = 0.25  # of the fastest process's speed: what a slower one is taken for, so that it is seen again


class Speeds:
    """What each of several processes gets done in a second, as measured in the exchanges of one kind."""

    def __init__(self, count: int) -> None:
        self._seen: list[deque[float]] = [deque(maxlen=RECENT) for _ in range(count)]

    def add(self, worker: int, work: float, seconds: float) -> None:
        """A process took so long for its share."""
        if work > 0 and seconds > 0:
            self._seen[worker].append(work / seconds)

    def relative(self) -> list[float]:
        """Speeds beside the fastest one's; all alike until every process has been seen."""
        if not all(self._seen):
            return [1.0] * len(self._seen)
        found = [statistics.median(seen) for seen in self._seen]
        return [max(speed / max(found), LEAST) for speed in found]


def balance(weights: Sequence[float], speeds: Sequence[float]) -> list[list[int]]:
    """Which worker gets which items: the heaviest first, each to who would be done with it first."""
    shares: list[list[int]] = [[] for _ in speeds]
    loads = [0.0] * len(speeds)
    for i in sorted(range(len(weights)), key=lambda i: (-weights[i], i)):
        done = [(load + weights[i]) / speed for load, speed in zip(loads, speeds, strict=True)]
        first = done.index(min(done))
        shares[first].append(i)
        loads[first] += weights[i]
    return [sorted(share) for share in shares]
