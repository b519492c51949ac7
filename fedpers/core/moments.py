"""Means and standard deviations of features over clients, from each client's count, sums and squares."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedpers.core.pixels import white

RELATIVE = 1e-15  # a variance below this share of the mean square is rounding: the feature is constant


@dataclass(frozen=True)
class Moments:
    """What one client sends about its samples: their number, the features' sums and sums of squares.

    Sums are rounded once, so they depend on neither the order of samples nor that of clients.
    """

    count: int
    sums: tuple[float, ...]  # of each feature, flat
    squares: tuple[float, ...]

    @classmethod
    def of(cls, x: np.ndarray) -> "Moments":
        """Of stored samples x [n, ...], pixels in [0, 1]."""
        columns = (x.reshape(len(x), -1) / white(x)).T
        sums = tuple(math.fsum(c) for c in columns.tolist())
        return cls(len(x), sums, tuple(math.fsum(c) for c in (columns**2).tolist()))


def scale_of(clients: Sequence[Moments]) -> tuple[np.ndarray, np.ndarray]:
    """(mean, 1 / standard deviation) of each feature over all clients' samples; 1 for a constant feature."""
    count = sum(m.count for m in clients)
    mean = np.array([math.fsum(s) for s in zip(*(m.sums for m in clients), strict=True)]) / count
    square = np.array([math.fsum(s) for s in zip(*(m.squares for m in clients), strict=True)]) / count
    variance = square - mean**2
    varies = variance > RELATIVE * square
    return mean, 1 / np.sqrt(np.where(varies, variance, 1))
