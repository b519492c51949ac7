"""Which clients take part in a round."""

from collections.abc import Sequence

import numpy as np

from fedpers.core.plan import Plan
from fedpers.flower.clock import Clock


def reachable(ids: Sequence[int], clock: Clock | None, t: int) -> Sequence[int]:
    """The clients that can be asked in round t: all, unless simulated devices come and go."""
    if clock is None or clock.systems.always:
        return ids
    there = clock.available(t)
    return [k for k in ids if there[k]]


def drawn(
    ids: Sequence[int], r: int, plan: Plan, rng: np.random.Generator, there: Sequence[int]
) -> list[int]:
    """The clients of a round, sorted, uniformly: r, from the range to r, or each with chance r/N.

    Args:
        ids: all N clients.
        r: how many; with over-selection (`plan.extra`) so many more.
        plan: how they are drawn.
        rng: the server's, of this round.
        there: those of them that can be asked.
    """
    if plan.participation == "bernoulli":
        return [k for k, u in zip(there, rng.random(len(there)), strict=True) if u < r / len(ids)]
    if plan.participation == "range":
        r = int(rng.integers(min(plan.least_per_round, r), r + 1))
    r += plan.extra
    if r >= len(there):
        return list(there)
    return sorted([there[i] for i in rng.choice(len(there), r, replace=False).tolist()])
