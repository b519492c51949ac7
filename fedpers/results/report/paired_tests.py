"""Three tests of paired differences; each interval holds the shifts that the same test does not reject.

A test of a family of several is corrected by Bonferroni: its p is multiplied by their number and its
interval is wider. So 0 lies outside of an interval exactly where p is below 1 - LEVEL.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

LEVEL = 0.95  # of the intervals of a family together; 1 - LEVEL is where a p-value counts
POWER = 0.8  # chance to find a difference that there is
MOST_SEEDS = 100


@dataclass(frozen=True)
class Difference:
    """A paired difference over `n` seeds, its interval and two-sided p-value; nan: unknown."""

    gap: float  # the mean; of the tests by signs and ranks their medians
    low: float
    high: float
    p: float
    n: int
    test: str = ""  # t | signs | ranks

    @property
    def sure(self) -> bool:
        """It differs from 0; the interval says the same."""
        return self.p < 1 - LEVEL


NO_DIFFERENCE = Difference(math.nan, math.nan, math.nan, math.nan, 0)


def student(gaps: np.ndarray, family: int = 1) -> Difference:
    """Student's t test of n >= 2 gaps [n] that are finite and not all equal."""
    n, mean = len(gaps), float(gaps.mean())
    error = float(gaps.std(ddof=1)) / math.sqrt(n)
    reach = error * float(stats.t.isf((1 - LEVEL) / (2 * family), n - 1))
    p = min(1.0, 2 * family * float(stats.t.sf(abs(mean) / error, n - 1)))
    return Difference(mean, mean - reach, mean + reach, p, n, "t")


def signs(gaps: np.ndarray, family: int = 1) -> Difference:
    """The sign test of the median of gaps [n], infinite ones too; a gap of 0 counts against both sides."""
    n = len(gaps)
    null = np.array([math.comb(n, k) / 2**n for k in range(n + 1)])
    return _counted(gaps, null, n, family, "signs")


def ranks(gaps: np.ndarray, family: int = 1) -> Difference:
    """Wilcoxon's signed-rank test of finite gaps [n], symmetric about their median, by exact counts.

    The sum of the ranks of positive gaps is the number of positive means of two gaps, each with itself
    too; the median of these means is Hodges' and Lehmann's estimate. Source: Hollander, Wolfe, Chicken,
    Nonparametric Statistical Methods, 3rd edition, 3.1 to 3.3. Ties make the test conservative.
    """
    first, second = np.triu_indices(len(gaps))
    null = np.ones(1)
    for rank in range(1, len(gaps) + 1):
        null = (np.pad(null, (0, rank)) + np.pad(null, (rank, 0))) / 2
    return _counted((gaps[first] + gaps[second]) / 2, null, len(gaps), family, "ranks")


def _counted(values: np.ndarray, null: np.ndarray, n: int, family: int, test: str) -> Difference:
    """A test by how many `values` lie on one side of 0; null[k] is the chance of k where the median is 0."""
    chance, ordered = 2 * family * np.cumsum(null), np.sort(values)
    fewest = min(int((values <= 0).sum()), int((values >= 0).sum()))
    outside = int((chance < 1 - LEVEL).sum())  # values that an interval may leave out at either end, plus 1
    low, high = (ordered[outside - 1], ordered[-outside]) if outside else (-math.inf, math.inf)
    p = min(1.0, float(chance[fewest]))
    return Difference(float(np.median(values)), float(low), float(high), p, n, test)


def seeds_needed(gaps: np.ndarray, family: int = 1) -> int | None:
    """How many seeds let the t test find a difference with a chance of POWER, if mean and spread stay so.

    None: more than MOST_SEEDS, or no spread is known. Source: the noncentral t distribution, as in Cohen,
    Statistical Power Analysis for the Behavioral Sciences, 2nd edition, chapter 2.
    """
    if len(gaps) < 2 or not np.isfinite(gaps).all() or not np.ptp(gaps):
        return None
    effect = abs(float(gaps.mean())) / float(gaps.std(ddof=1))
    n = np.arange(len(gaps) + 1, MOST_SEEDS + 1)
    least = stats.t.isf((1 - LEVEL) / (2 * family), n - 1)
    enough = stats.nct.sf(least, n - 1, effect * np.sqrt(n)) >= POWER
    return int(n[enough.argmax()]) if enough.any() else None
