"""Which clients take part, where they are drawn with unequal probabilities."""

import numpy as np

from fedpers.core.errors import FedpersError


def draw(rng: np.random.Generator, probs: np.ndarray, size: int, replace: bool) -> list[int]:
    """`size` places drawn with the given probabilities (scaled to sum 1), sorted.

    Without replacement each draw is from what is left, with the weights of those left: all places
    differ, and with large `size` everybody comes nearly as often. With replacement places repeat.

    Raises:
        FedpersError: without replacement, fewer places than `size` have a positive probability.
    """
    probs = np.asarray(probs, dtype=np.float64)
    possible = int((probs > 0).sum())
    if not replace and size > possible:
        raise FedpersError(
            f"{size} different clients are to be drawn, but only {possible} have a "
            "positive probability; draw fewer, or with replacement"
        )
    drawn = rng.choice(len(probs), size=size, replace=replace, p=probs / probs.sum())
    return sorted(int(i) for i in drawn)
