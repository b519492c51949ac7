"""Paired comparisons over seeds, clients gained and lost, and what may be concluded from them.

Two runs of one seed share data, partition and start, so methods are compared seed by seed. Clients
of one seed share more: the server's models and every draw. They are no independent evidence, so a
test over clients and seeds pairs by client, takes the mean over the clients of each seed, and is
Student's t test of these means: for as few as two clusters, of unequal sizes and spreads too, its
chance to find what is not there is at most its level, if that is at most 8 %. Standard errors that
are clustered without such means need some 40 clusters. Sources: Ibragimov and Müller, t-Statistic
Based Correlation and Heterogeneity Robust Inference, JBES 28, 2010; Cameron and Miller, A
Practitioner's Guide to Cluster-Robust Inference, JHR 50, 2015.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedpers.results.report.paired_tests import Difference, signs, student

ROUNDING = 1e-6  # of the largest score: some units in the last place of a float32
Scores = Mapping[int, float]  # seed -> value
Of = Mapping[int, Scores]  # seed -> {partition id: value}


@dataclass(frozen=True)
class Clients:
    """Clients beside their local training: shares that are better and worse off, and the mean gain."""

    gained: float
    hurt: float
    count: int  # clients, those of all seeds
    gain: Difference  # paired by client, clustered by seed


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


def gaps(ours: Scores, theirs: Scores) -> np.ndarray:
    """ours - theirs on the seeds that both have, in their order; 0 where both are infinite."""
    seeds = sorted(ours.keys() & theirs.keys())
    found = np.array([0.0 if ours[s] == theirs[s] else ours[s] - theirs[s] for s in seeds])
    return _without_rounding(found, _largest([ours, theirs]))


def _largest(scores: Iterable[Scores]) -> float:
    return max((abs(v) for table in scores for v in table.values() if math.isfinite(v)), default=0.0)


def _without_rounding(found: np.ndarray, largest: float) -> np.ndarray:
    """Gaps that rounding alone tells from 0, or from the first of them, are that.

    A method that has one sample more right in each seed has equal gaps; as float32 they differ in their last
    digits, and t would take that for their spread.
    """
    unit = ROUNDING * largest
    found = np.where(np.abs(found) <= unit, 0.0, found)
    return (
        np.where(np.abs(found - found[:1]) <= 2 * unit, found[:1], found)
        if np.isfinite(found).all()
        else found
    )


def paired(ours: Scores, theirs: Scores, family: int = 1) -> Difference | None:
    """ours - theirs, one of so many comparisons; None where there is no seed that both have."""
    found = gaps(ours, theirs)
    return difference_of(found, family) if len(found) else None


def difference_of(found: np.ndarray, family: int = 1) -> Difference:
    """The t test of gaps [n]; by signs where it is undefined: a run diverged, or all gaps are equal."""
    if len(found) < 2:
        return Difference(float(found[0]), math.nan, math.nan, math.nan, 1)
    if not np.isfinite(found).all() or np.ptp(found) <= 1e-12 * max(1.0, float(abs(found[0]))):
        return signs(found, family)
    return student(found, family)


def verdict(scores: Mapping[str, Scores], larger_is_better: bool = True) -> Verdict:
    """Compare the best mean with all others.

    Which method is on top is itself read off the data. So each of the k - 1 p-values is multiplied by
    k - 1 (Bonferroni): the chance that any method is named the winner over a better one is then at
    most 1 - LEVEL.
    """
    sign = 1 if larger_is_better else -1
    names = sorted(scores, key=lambda name: -sign * float(np.mean(list(scores[name].values()))))
    top, others = names[0], names[1:]
    found = {name: paired(scores[top], scores[name], len(others)) for name in others}
    p = {name: d.p if d else math.nan for name, d in found.items()}
    worse = [name for name, d in found.items() if d and sign * d.gap > 0 and d.sure]
    seeds = min((d.n if d else 0 for d in found.values()), default=len(scores[top]))
    return Verdict([n for n in names if n not in worse], worse, seeds, p)


def clients(ours: Of, theirs: Of, family: int = 1) -> Clients | None:
    """Clients {seed: {partition id: accuracy}} of two methods, seed by seed; None without a pair."""
    pairs = {s: gaps(ours[s], theirs[s]) for s in sorted(ours.keys() & theirs.keys())}
    pairs = {s: found for s, found in pairs.items() if len(found)}
    if not pairs:
        return None
    every = np.concatenate(list(pairs.values()))
    means = np.array([found.mean() for found in pairs.values()])
    means = _without_rounding(means, _largest([*ours.values(), *theirs.values()]))
    return Clients(
        float((every > 0).mean()), float((every < 0).mean()), len(every), difference_of(means, family)
    )


def mean(values: Sequence[float]) -> float:
    """The mean of what is known; nan of nothing."""
    known = [v for v in values if not math.isnan(v)]
    return float(np.mean(known)) if known else math.nan
