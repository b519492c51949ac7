"""Paired comparisons over seeds, clients gained and lost, and what may be concluded from them.

Two runs of one seed share data, partition and start, so methods are compared seed by seed. Three
seeds say little: intervals and tests use Student's t with as many degrees of freedom as there are.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

LEVEL = 0.95  # of the intervals; 1 - LEVEL is where a p-value counts
Scores = Mapping[int, float]  # seed -> value


@dataclass(frozen=True)
class Difference:
    """Mean of the paired differences over `n` seeds, its interval, a two-sided p-value; nan: unknown."""

    mean: float
    low: float
    high: float
    p: float
    n: int


NO_DIFFERENCE = Difference(math.nan, math.nan, math.nan, math.nan, 0)


@dataclass(frozen=True)
class Clients:
    """Shares of the clients that are better and worse off than under another method."""

    gained: float
    hurt: float
    count: int  # clients, those of all seeds


@dataclass(frozen=True)
class Verdict:
    """Who is on top: `alike` cannot be told apart, `worse` are worse than the first of `alike`."""

    alike: Sequence[str]
    worse: Sequence[str]
    seeds: int
    p: Mapping[str, float]  # of each but the first against the first, corrected; nan: unknown

    @property
    def decided(self) -> bool:
        """One method is better than all others."""
        return len(self.alike) == 1 and bool(self.worse)


def paired(ours: Scores, theirs: Scores) -> Difference | None:
    """ours - theirs on the seeds that both have; None where there is no such seed."""
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return None
    gaps = np.array([ours[s] - theirs[s] for s in seeds])
    n, mean = len(gaps), float(gaps.mean())
    if n < 2:
        return Difference(mean, math.nan, math.nan, math.nan, n)
    error = float(gaps.std(ddof=1)) / math.sqrt(n)
    if error < 1e-12 * max(1.0, abs(mean)):  # all equal: t is undefined, the signs have a test
        return Difference(mean, math.nan, math.nan, 2.0 ** (1 - n) if mean else 1.0, n)
    reach = float(stats.t.ppf((1 + LEVEL) / 2, n - 1)) * error
    p = float(2 * stats.t.sf(abs(mean) / error, n - 1))
    return Difference(mean, mean - reach, mean + reach, p, n)


def holm(values: Sequence[float]) -> list[float]:
    """Holm's correction of the p-values of one family; nan is no member and stays."""
    known = sorted((p, i) for i, p in enumerate(values) if not math.isnan(p))
    corrected, highest = list(values), 0.0
    for place, (p, i) in enumerate(known):
        highest = max(highest, min(1.0, (len(known) - place) * p))
        corrected[i] = highest
    return corrected


def verdict(scores: Mapping[str, Scores], larger_is_better: bool = True) -> Verdict:
    """Compare the best mean with all others.

    Which method is on top is itself read off the data. So each of the k - 1 p-values is multiplied by
    k - 1 (Bonferroni): the chance that any method is named the winner over a better one is then at
    most 1 - LEVEL.
    """
    sign = 1 if larger_is_better else -1
    names = sorted(scores, key=lambda name: -sign * float(np.mean(list(scores[name].values()))))
    top, others = names[0], names[1:]
    found = {name: paired(scores[top], scores[name]) for name in others}
    p = {name: min(1.0, d.p * len(others)) if d and d.p == d.p else math.nan for name, d in found.items()}
    worse = [name for name, d in found.items() if d and sign * d.mean > 0 and p[name] < 1 - LEVEL]
    seeds = min((d.n if d else 0 for d in found.values()), default=len(scores[top]))
    return Verdict([n for n in names if n not in worse], worse, seeds, p)


def clients(ours: Mapping[int, Scores], theirs: Mapping[int, Scores]) -> Clients | None:
    """Clients {seed: {partition id: accuracy}} of two methods, seed by seed; None without a pair."""
    gaps = np.array(
        [
            mine - theirs[seed][k]
            for seed in ours.keys() & theirs.keys()
            for k, mine in ours[seed].items()
            if k in theirs[seed]
        ]
    )
    if not len(gaps):
        return None
    return Clients(float((gaps > 0).mean()), float((gaps < 0).mean()), len(gaps))


def mean(values: Sequence[float]) -> float:
    """The mean of what is known; nan of nothing."""
    known = [v for v in values if not math.isnan(v)]
    return float(np.mean(known)) if known else math.nan
