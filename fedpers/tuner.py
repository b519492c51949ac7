"""How many clients belong in one stack: measured on the first chunks of the run itself."""

import logging
from dataclasses import dataclass, field

log = logging.getLogger("fedpers")
CANDIDATES = (4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass
class Tuner:
    """Finds the chunk size with the least time a client, on chunks that are needed anyway."""

    name: str = ""                            # of what is tuned, for the log
    seconds: dict[int, list[float]] = field(default_factory=dict)
    limit: int | None = None                  # learned from running out of memory
    told: int = 0

    def size(self, waiting: int, limit: int) -> int:
        """The size of the next chunk, with so many clients waiting and memory for `limit`."""
        top = min(waiting, limit, self.limit or limit)
        best = float("inf")
        for c in (c for c in CANDIDATES if c <= top):
            took = self.seconds.get(c, ())
            if len(took) < 2:
                return c
            if min(took) > 1.15 * best:       # beyond the best size: larger ones are no better
                break
            best = min(best, *took)
        return self._share(waiting, top)

    def add(self, size: int, seconds: float) -> None:
        """A chunk of `size` clients took so long for a sample of one client."""
        if size in CANDIDATES and len(self.seconds.setdefault(size, [])) < 2:
            self.seconds[size].append(seconds)

    def _share(self, waiting: int, top: int) -> int:
        """Equal parts of about the best size: each call costs, also for a few clients."""
        if not self.seconds:
            return max(top, 1)
        parts = max(int(waiting / self._best() + 0.5), -(-waiting // max(top, 1)), 1)
        return -(-waiting // parts)

    def _best(self) -> int:
        best = min(self.seconds, key=lambda c: min(self.seconds[c]))
        if best != self.told:
            took = ", ".join(f"{c}: {min(t) * 1e6:.1f}" for c, t in self.seconds.items())
            log.info("stacks of %d clients for %s (microseconds a sample: %s)", best, self.name, took)
            self.told = best
        return best
