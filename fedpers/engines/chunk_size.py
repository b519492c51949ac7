"""The number of clients in a stack, measured on the chunks of the run itself."""

import logging
from collections import deque
from dataclasses import dataclass, field

log = logging.getLogger("fedpers")
FIRST = 16  # tried first
LARGER = (FIRST, 32, 64, 128, 256, 512, 1024)
SMALLER = (8, 4)  # tried if the first is the best of the larger
CANDIDATES = (*SMALLER, *LARGER)
AGAIN = 16  # after so many chunks a neighbouring size is tried
ANEW = (8, 32, 128)  # chunks after which all is measured again: the first ones meet data and memory cold
LEAST = 0.7  # of a candidate: a chunk of that size counts for it
ALIKE = 1.05  # times so near are equal: larger stacks need fewer calls
ROOMY = 2**26  # bytes of a stack that autograd computes on a CPU: more than 2 FIRST clients have no more
LARGEST = 2**28  # ... more than FIRST have no more
RECENT = 4  # measurements that count: the load of a machine changes


@dataclass
class ChunkSize:
    """Finds the number of clients per stack with the least time per client, from the run's own stacks."""

    name: str = ""  # of what is tuned, for the log
    measures: bool = True  # or what memory has room for: a GPU takes little longer for more clients
    seconds: dict[int, deque[float]] = field(default_factory=dict)
    limit: int | None = None  # learned from running out of memory
    chunks: int = 0
    logged: int = 0  # the size that was chosen last, and told

    def size(self, waiting: int, limit: int) -> int:
        """The number of clients in the next chunk, at most `waiting` and `limit` (what memory allows)."""
        top = min(waiting, limit, self.limit or limit)
        if not self.measures:
            return self._share(waiting, top, max(top, 1))
        self.chunks += 1
        if self.chunks in ANEW:
            self.seconds.clear()
        if (tried := self._untried(top) or self._neighbour(top)) is None:
            return self._share(waiting, top, self._best()) if self.seconds else max(top, 1)
        share = self._share(waiting, top, tried)
        return share if _counts_for(tried, share) else min(tried, top)

    def add(self, size: int, seconds: float) -> None:
        """Note that a chunk of `size` clients took `seconds` per client and sample."""
        for c in CANDIDATES:
            if _counts_for(c, size):
                self.seconds.setdefault(c, deque(maxlen=RECENT)).append(seconds)

    def _untried(self, top: int) -> int | None:
        """The next size to measure, until further ones are no better."""
        best = float("inf")
        for walk in (LARGER, SMALLER):
            for c in walk:
                took = self.seconds.get(c, ())
                if len(took) < 2 and LEAST * c < top:
                    return c
                if took and min(took) > 1.15 * best:
                    break
                best = min([best, *took])
            if self.seconds and self._fastest() > FIRST:
                return None
        return None

    def _neighbour(self, top: int) -> int | None:
        """At times half or twice the best size, since one may have been measured under load."""
        times, rest = divmod(self.chunks, AGAIN)
        if rest or not self.seconds:
            return None
        other = self._best() // 2 if times % 2 else self._best() * 2
        return other if other in CANDIDATES and LEAST * other < top else None

    def _share(self, waiting: int, top: int, size: int) -> int:
        """Equal parts of about `size`: each call costs, also for a few clients."""
        parts = max(int(waiting / size + 0.5), -(-waiting // max(top, 1)), 1)
        return -(-waiting // parts)

    def _fastest(self) -> int:
        """The size with the least time; the largest of those within ALIKE of it."""
        least = min(map(self._least, self.seconds))
        return max(c for c in self.seconds if self._least(c) <= ALIKE * least)

    def _least(self, size: int) -> float:
        """The least of the size's measurements that count."""
        return min(self.seconds[size])

    def _best(self) -> int:
        best = self._fastest()
        if self.logged in self.seconds and self._least(self.logged) <= ALIKE * self._least(best):
            return self.logged  # what was chosen stays until another is clearly better
        if best != self.logged:
            took = ", ".join(f"{c}: {min(t) * 1e6:.1f}" for c, t in sorted(self.seconds.items()))
            level = logging.DEBUG if self.logged else logging.INFO  # later ones are fine tuning
            log.log(level, "stacks of %d clients for %s (microseconds a sample: %s)", best, self.name, took)
            self.logged = best
        return best


def _counts_for(candidate: int, size: int) -> bool:
    """Whether the time of a chunk of `size` clients is also one of `candidate`."""
    return LEAST * candidate < size <= 2 * LEAST * candidate


def without_rest(waiting: int, size: int, limit: int) -> int:
    """The size of the next chunk, so that no single client is left, who would be computed twice."""
    if waiting != size + 1 or size == 1:
        return size
    return size - 1 if size > 2 else min(waiting, limit)


def most_clients(budget: int, each: int, *, by_autograd: bool) -> int:
    """Clients that a stack may have, of so many bytes `each`.

    Args:
        budget: bytes that it must not exceed, unless one client does.
        by_autograd: of a module on a CPU: beyond 2 FIRST clients more take memory, and hardly less time.
    """
    wanted = max(ROOMY, min(LARGEST, 2 * FIRST * each), FIRST * each)
    return max(1, (min(budget, wanted) if by_autograd else budget) // each)
