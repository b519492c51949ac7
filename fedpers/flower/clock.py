"""The virtual clock of simulated devices: how long exchanges take on them, and whose replies come in time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from fedpers.core.errors import ReplyError
from fedpers.core.systems import SYSTEMS, Systems

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
    """

    def __init__(self, systems: Systems, flops: Flops, now: float = 0.0) -> None:
        self.systems, self.flops, self.now = systems, flops, now

    def available(self, t: int) -> np.ndarray:
        """[N] whether each client can be asked in round t."""
        return self.systems.available(t, self.now)

    def seconds(self, efforts: Mapping[int, Effort]) -> dict[int, float]:
        """How long each client takes: to receive, to train, to send."""
        at = {c: self.systems.at(c, self.now) for c in ("gflops", "mbit_down", "mbit_up")}
        return {
            k: float(
                e.down * BITS / MEGA / at["mbit_down"][k]
                + e.flops / GIGA / at["gflops"][k]
                + e.up * BITS / MEGA / at["mbit_up"][k]
            )
            for k, e in efforts.items()
        }

    def pass_by(self, efforts: Mapping[int, Effort], most: int, when: tuple[int, int]) -> set[int]:
        """Let an exchange pass; returns the clients whose replies came too late.

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
