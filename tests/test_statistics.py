"""Paired comparisons: published examples and closed forms of the tests, coverage, who is named the winner."""

import math

import numpy as np
import pytest
from scipy import stats

from fedpers.results.report.paired_tests import ranks, seeds_needed, signs, student
from fedpers.results.report.statistics import clients, difference_of, paired, verdict

TESTS = {"t": student, "signs": signs, "ranks": ranks}


def seeds(*values: float) -> dict[int, float]:
    return dict(enumerate(values))


# ---- Student's t --------------------------------------------------------------------------------


def test_two_seeds_by_hand():
    """With one degree of freedom t is Cauchy: quantile tan(.475 pi), two-sided p = 1 - 2 atan(t) / pi."""
    d = paired(seeds(0.5, 0.7), seeds(0.4, 0.4))  # differences 0.1, 0.3: mean 0.2, standard error 0.1
    assert d.gap == pytest.approx(0.2)
    reach = 0.1 * math.tan(0.475 * math.pi)
    assert (d.low, d.high) == (pytest.approx(0.2 - reach), pytest.approx(0.2 + reach))
    assert d.p == pytest.approx(1 - 2 * math.atan(2) / math.pi)


def test_three_seeds_by_hand():
    """With two degrees of freedom p = 1 - t / sqrt(2 + t^2), quantile t with t / sqrt(2 + t^2) = .95."""
    d = paired(seeds(1, 2, 3), seeds(0, 0, 0))  # mean 2, standard deviation 1
    t = 2 * math.sqrt(3)
    assert d.p == pytest.approx(1 - t / math.sqrt(2 + t * t))
    quantile = 0.95 * math.sqrt(2 / (1 - 0.95**2))
    assert d.high - d.gap == pytest.approx(quantile / math.sqrt(3))


def test_students_own_example():
    """Student, The probable error of a mean, 1908: hours of sleep; values as R's t.test prints them."""
    first = np.array([0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0])
    second = np.array([1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4])
    d = student(first - second)
    assert (d.gap, d.p) == (pytest.approx(-1.58), pytest.approx(0.002833, abs=5e-7))
    assert (d.low, d.high) == (pytest.approx(-2.4598858), pytest.approx(-0.7001142))


def test_only_common_seeds_are_paired():
    d = paired({0: 1.0, 1: 2.0, 5: 9.0}, {0: 0.5, 1: 1.0, 7: 9.0})
    assert (d.n, d.gap) == (2, 0.75)
    assert paired({0: 1.0}, {1: 1.0}) is None


def test_one_seed_has_no_interval():
    d = paired({3: 0.9}, {3: 0.5})
    assert d.n == 1 and d.gap == pytest.approx(0.4) and not d.sure
    assert all(map(math.isnan, (d.low, d.high, d.p)))


# ---- signs and ranks ----------------------------------------------------------------------------

DEPRESSION = np.array([1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.30]) - np.array(
    [0.878, 0.647, 0.598, 2.05, 1.06, 1.29, 1.06, 3.14, 1.29]
)


def test_ranks_of_a_published_example():
    """Hollander and Wolfe, examples 3.1 to 3.4: T+ = 40, p .039, estimate .46, 96 % interval .01 to .786."""
    d = ranks(DEPRESSION)
    assert d.p == pytest.approx(20 / 512)  # 10 of the 512 sets of ranks 1..9 sum to 5 or less
    assert (d.gap, d.low, d.high) == pytest.approx((0.46, 0.01, 0.786))


def test_signs_by_hand():
    """7 of 9 positive: p = 2 (1 + 9 + 36) / 512. 2 (1 + 9) / 512 < .05: one value is left out at each end."""
    d = signs(DEPRESSION)
    assert d.p == pytest.approx(92 / 512)
    assert (d.gap, d.low, d.high) == pytest.approx((0.49, -0.08, 0.952))


@pytest.mark.parametrize("n", [3, 6, 9, 20])
def test_p_is_scipys_where_nothing_is_tied(n):
    gaps = np.random.default_rng(n).normal(0.3, size=n)
    assert ranks(gaps).p == pytest.approx(stats.wilcoxon(gaps, method="exact").pvalue)
    assert signs(gaps).p == pytest.approx(stats.binomtest(int((gaps > 0).sum()), n).pvalue)
    assert student(gaps).p == pytest.approx(stats.ttest_1samp(gaps, 0).pvalue)


@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize("family", [1, 4])
def test_an_interval_never_contradicts_its_p(test, family):
    """Ties and zeros too; each case is near the border at least now and then."""
    rng, decided = np.random.default_rng(0), 0
    for _ in range(300):
        n = int(rng.integers(2, 14))
        gaps = np.round(rng.normal(rng.uniform(0, 1.2), size=n), int(rng.integers(0, 3)))
        if np.ptp(gaps) == 0 and test == "t":
            continue
        d = TESTS[test](gaps, family)
        assert d.sure == (d.low > 0 or d.high < 0), gaps
        assert d.low <= d.gap <= d.high
        decided += d.sure
    assert 10 < decided < 290


@pytest.mark.parametrize("test", TESTS)
def test_a_shift_moves_the_interval_with_it(test):
    d, shifted = TESTS[test](DEPRESSION), TESTS[test](DEPRESSION - 0.3)
    assert (shifted.low, shifted.high) == pytest.approx((d.low - 0.3, d.high - 0.3))


def test_bonferroni_multiplies_p_and_widens_the_interval_alike():
    one, four = student(DEPRESSION), student(DEPRESSION, 4)
    assert four.p == pytest.approx(4 * one.p)
    at_9875 = stats.t.interval(0.9875, 8, DEPRESSION.mean(), stats.sem(DEPRESSION))
    assert (four.low, four.high) == pytest.approx(at_9875)
    assert ranks(DEPRESSION, 2).p == pytest.approx(40 / 512)


def test_equal_differences_are_no_certainty():
    """t is infinite there, but three signs alike happen by chance once in four."""
    d = paired(seeds(2, 3, 4), seeds(1, 2, 3))
    assert (d.p, d.test) == (0.25, "signs") and (d.low, d.high) == (-math.inf, math.inf)
    assert paired(seeds(2, 3, 4), seeds(2, 3, 4)).p == 1.0
    six = paired(seeds(*[2.0] * 6), seeds(*[1.0] * 6))
    assert six.p == pytest.approx(2 / 64) and (six.low, six.high) == (1.0, 1.0)


def test_one_sample_in_each_seed_is_no_certainty_although_float32_rounds_it():
    """42, 43 and 44 of 53 beside 43, 44 and 45: as float32 the gaps differ in the eighth digit."""
    ours = {s: float(np.float32(n / 53)) for s, n in enumerate((42, 43, 44))}
    theirs = {s: float(np.float32((n + 1) / 53)) for s, n in enumerate((42, 43, 44))}
    assert len({theirs[s] - ours[s] for s in range(3)}) > 1
    found = paired(ours, theirs)
    assert (found.test, found.p) == ("signs", 0.25) and found.gap == pytest.approx(-1 / 53, rel=1e-5)
    same = paired(ours, {s: v + 1e-8 for s, v in ours.items()})
    assert (same.gap, same.p) == (0.0, 1.0)
    by_client = clients(
        {s: {0: v, 1: v} for s, v in ours.items()}, {s: {0: v, 1: v} for s, v in theirs.items()}
    )
    assert (by_client.gain.test, by_client.gain.p) == ("signs", 0.25)
    assert paired({s: 1e-9 * v for s, v in enumerate((1, 2, 4))}, {0: 0.0, 1: 0.0, 2: 0.0}).test == "t"


def test_a_run_that_diverged_has_a_sign():
    """Losses: theirs infinite in one of six seeds, larger in all; both infinite is no difference."""
    d = paired(seeds(1, 1, 1, 1, 1, 1), seeds(2, 3, math.inf, 2, 4, 2))
    assert d.test == "signs" and d.p == pytest.approx(2 / 64) and d.gap == -1.5
    assert paired(seeds(math.inf, 1), seeds(math.inf, 2)).gap == -0.5


# ---- clients and seeds together -----------------------------------------------------------------


def test_clients_gained_and_lost():
    ours = {0: {0: 0.9, 1: 0.5, 2: 0.7}, 1: {0: 0.8}, 9: {0: 0.0}}
    local = {0: {0: 0.8, 1: 0.6, 2: 0.7, 3: 1.0}, 1: {0: 0.7}, 8: {0: 1.0}}
    found = clients(ours, local)
    assert (found.gained, found.hurt, found.count) == (0.5, 0.25, 4)
    assert found.gain.gap == pytest.approx(0.05)  # seed 0: (.1 - .1 + 0) / 3 = 0; seed 1: .1
    assert clients({0: {0: 1.0}}, {1: {0: 1.0}}) is None


def made(rng: np.random.Generator, num_seeds: int, sizes: list[int], seed_sd: float) -> np.ndarray:
    """Means over the clients of each seed: a shared part of each seed, and a part of each client."""
    shared = rng.normal(scale=seed_sd, size=num_seeds)
    return np.array([s + rng.normal(size=n).mean() for s, n in zip(shared, sizes, strict=True)])


@pytest.mark.parametrize(
    ("sizes", "least", "most"),
    [
        ([20] * 3, 0.93, 0.97),  # alike: the t test is exact, 95 % but for chance
        ([20] * 10, 0.93, 0.97),
        ([3, 30, 30], 0.93, 1.0),  # unlike: it is conservative
    ],
)
def test_intervals_over_clients_and_seeds_cover_the_truth(sizes, least, most):
    """2,000 data sets whose true difference is 0; binomial standard error .5 points."""
    rng = np.random.default_rng(1)
    found = [difference_of(made(rng, len(sizes), sizes, 0.5)) for _ in range(2000)]
    assert least < np.mean([d.low < 0 < d.high for d in found]) < most


def test_clients_taken_as_independent_would_cover_far_less():
    """Why seeds are the units: the same data, each client counted as evidence of its own."""
    rng, covered = np.random.default_rng(2), 0
    for _ in range(500):
        every = np.concatenate([rng.normal(scale=0.5) + rng.normal(size=20) for _ in range(3)])
        low, high = stats.t.interval(0.95, len(every) - 1, every.mean(), stats.sem(every))
        covered += low < 0 < high
    assert covered < 0.75 * 500


@pytest.mark.parametrize(("effect", "n"), [(0.5, 34), (0.8, 15), (1.0, 10)])
def test_seeds_needed_are_those_of_published_tables(effect, n):
    """Paired t test, two-sided 5 %, power 80 %; as G*Power has them for d_z = .5, .8, 1."""
    sd = math.sqrt(2) / 2  # of -.5, .5
    assert seeds_needed(np.array([-0.5, 0.5]) + effect * sd) == n


def test_seeds_needed_may_be_unknown():
    assert seeds_needed(np.array([1.0])) is None and seeds_needed(np.array([1.0, 1.0])) is None
    assert seeds_needed(np.array([-1.0, 1.0])) is None  # no difference: never


# ---- verdicts -----------------------------------------------------------------------------------


def test_a_clear_winner_is_named():
    v = verdict({"a": seeds(0.5, 0.51, 0.49), "b": seeds(0.9, 0.91, 0.89001), "c": seeds(0.5, 0.5, 0.495)})
    assert v.decided and v.alike == ["b"] and v.worse == ["a", "c"] and v.seeds == 3


def test_of_losses_the_smallest_wins():
    v = verdict({"a": seeds(2.0, 2.1, 2.0), "b": seeds(1.0, 1.1, 1.01)}, larger_is_better=False)
    assert v.alike == ["b"]


def test_what_cannot_be_told_apart_is_said():
    v = verdict({"a": seeds(0.96, 0.95, 0.97), "b": seeds(0.97, 0.95, 0.96), "c": seeds(0.5, 0.51, 0.49)})
    assert not v.decided and set(v.alike) == {"a", "b"} and v.worse == ["c"]


def test_more_methods_need_stronger_evidence():
    """p of b against a is 1 - t / sqrt(2 + t^2) = .03: enough for two methods, not for three."""
    t = math.sqrt(2 * 0.97**2 / (1 - 0.97**2))
    b = [t / math.sqrt(3) + x for x in (-1, 0, 1)]
    two = {"a": seeds(0, 0, 0), "b": seeds(*b)}
    assert verdict(two).decided
    assert not verdict(two | {"c": seeds(-900, -901, -900)}).decided


def test_one_seed_decides_nothing():
    v = verdict({"a": {0: 0.9}, "b": {0: 0.1}})
    assert not v.decided and v.alike == ["a", "b"] and v.seeds == 1
    assert not verdict({"a": seeds(0.9, 0.9)}).decided
