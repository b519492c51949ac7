"""The virtual clock of simulated devices: how long exchanges take on them, and whose replies come in time."""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpers.core.errors import ReplyError
from fedpers.core.systems import SYSTEMS, Systems
from fedpers.core.work import Work, work_of
from fedpers.learning.training_round import doing, trainings

Flops = Callable[[int, int, int], int]  # of gradients, passes forward (theirs too) and head steps
BITS, MEGA, GIGA = 8, 1e6, 1e9


@dataclass
class Effort:
    """What an exchange took of one client."""

    down: int = 0  # bytes
    up: int = 0
    flops: int = 0


class Clock:
    """Simulated seconds since the run began.

    Args:
        systems: the devices.
        flops: what training costs.
        now: where a resumed run goes on.
        client: the method's client half, if late clients are to train for less.
        counts: [N] training samples of each client, then.
    """

    def __init__(
        self, systems: Systems, flops: Flops, now: float = 0.0, client: Any = None, counts: Any = ()
    ) -> None:
        self.systems, self.flops, self.now = systems, flops, now
        self.client, self.counts = client, counts

    def available(self, t: int) -> np.ndarray:
        """[N] whether each client can be asked in round t."""
        return self.systems.available(t, self.now)

    def seconds(self, efforts: Mapping[int, Effort]) -> dict[int, float]:
        """How long each client takes: to receive, to train, to send."""
        takes = self._timer()
        return {k: takes(k, e) for k, e in efforts.items()}

    def _timer(self) -> Callable[[int, Effort], float]:
        at = {c: self.systems.at(c, self.now) for c in ("gflops", "mbit_down", "mbit_up")}
        return lambda k, e: float(
            e.down * BITS / MEGA / at["mbit_down"][k]
            + e.flops / GIGA / at["gflops"][k]
            + e.up * BITS / MEGA / at["mbit_up"][k]
        )

    def operations(self, work: Work) -> int:
        """What training costs."""
        return self.flops(work.gradients, work.gradients + work.forwards, work.head_steps)

    def passes(self, orders: Mapping[int, Any], down: Mapping[int, int]) -> dict[int, int]:
        """{client: epochs (local.steps, where they count) that it gets done in time, 1 at least}; 0: all.

        Args:
            orders: those of an exchange, to clients whose replies are as large.
            down: bytes of each.
        """
        whole = max((cfg.steps or cfg.epochs for cfg in trainings(self.client.config).values()), default=0)
        takes, known = self._timer(), dict[tuple[int, int, int], int]()

        def seconds(k: int, passes: int) -> float:
            what = id(orders[k]), int(self.counts[k]), passes
            if what not in known:
                work = doing(self.client, passes).work(orders[k], what[1])
                known[what] = self.operations(work_of(work))
            return takes(k, Effort(down[k], down[k], known[what]))

        deadline = self.systems.config.deadline_s or math.inf
        done = {k: bisect_right(range(1, whole + 1), deadline, key=lambda m: seconds(k, m)) for k in orders}
        return {k: 0 if m == whole else max(m, 1) for k, m in done.items()}

    def pass_by(self, efforts: Mapping[int, Effort], most: int, when: tuple[int, int]) -> set[int]:
        """Advance the clock by one exchange; returns the clients whose replies came too late.

        The server waits for the first `most` replies, or for all, but not beyond the deadline. Who would
        be first in the same instant is drawn, so that no number of a client is an advantage.

        Raises:
            ReplyError: nobody met the deadline.
        """
        took, deadline = self.seconds(efforts), self.systems.config.deadline_s
        order = sorted(took)
        luck = np.random.default_rng([SYSTEMS, 2, self.systems.seed, *when]).random(len(order))
        lots = dict(zip(order, luck, strict=True))
        first = sorted(order, key=lambda k: (took[k], lots[k]))[:most]
        intime = [k for k in first if deadline is None or took[k] <= deadline]
        if not intime:
            best = min(took.values())
            text = f"the fastest of {len(took)} clients would take {best:.3g} simulated seconds"
            raise ReplyError(f"systems.deadline_s={deadline:g}: round {when[0]}: {text}; allow more")
        everybody = len(intime) == len(first)
        self.now += max(took[k] for k in intime) if everybody or deadline is None else deadline
        return set(took) - set(intime)
