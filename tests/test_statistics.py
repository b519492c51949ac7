"""Paired comparisons: closed forms of the t test, Holm's correction, who is named the winner."""

import math

import pytest

from fedpers.results.report.statistics import clients, holm, paired, verdict


def seeds(*values: float) -> dict[int, float]:
    return dict(enumerate(values))


def test_two_seeds_by_hand():
    """With one degree of freedom t is Cauchy: quantile tan(.475 pi), two-sided p = 1 - 2 atan(t) / pi."""
    d = paired(seeds(0.5, 0.7), seeds(0.4, 0.4))  # differences 0.1, 0.3: mean 0.2, standard error 0.1
    assert d.mean == pytest.approx(0.2)
    reach = 0.1 * math.tan(0.475 * math.pi)
    assert (d.low, d.high) == (pytest.approx(0.2 - reach), pytest.approx(0.2 + reach))
    assert d.p == pytest.approx(1 - 2 * math.atan(2) / math.pi)


def test_three_seeds_by_hand():
    """With two degrees of freedom p = 1 - t / sqrt(2 + t^2), quantile t with t / sqrt(2 + t^2) = .95."""
    d = paired(seeds(1, 2, 3), seeds(0, 0, 0))  # mean 2, standard deviation 1
    t = 2 * math.sqrt(3)
    assert d.p == pytest.approx(1 - t / math.sqrt(2 + t * t))
    quantile = 0.95 * math.sqrt(2 / (1 - 0.95**2))
    assert d.high - d.mean == pytest.approx(quantile / math.sqrt(3))


def test_only_common_seeds_are_paired():
    d = paired({0: 1.0, 1: 2.0, 5: 9.0}, {0: 0.5, 1: 1.0, 7: 9.0})
    assert (d.n, d.mean) == (2, 0.75)
    assert paired({0: 1.0}, {1: 1.0}) is None


def test_one_seed_has_no_interval():
    d = paired({3: 0.9}, {3: 0.5})
    assert d.n == 1 and d.mean == pytest.approx(0.4)
    assert all(map(math.isnan, (d.low, d.high, d.p)))


def test_equal_differences_are_no_certainty():
    """t is infinite there, but three signs alike happen by chance once in four."""
    d = paired(seeds(2, 3, 4), seeds(1, 2, 3))
    assert d.p == 0.25 and math.isnan(d.low)
    assert paired(seeds(2, 3, 4), seeds(2, 3, 4)).p == 1.0


def test_holm():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    corrected = holm([0.02, math.nan])
    assert corrected[0] == 0.02 and math.isnan(corrected[1])
    assert holm([]) == []


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


def test_clients_gained_and_lost():
    ours = {0: {0: 0.9, 1: 0.5, 2: 0.7}, 1: {0: 0.8}, 9: {0: 0.0}}
    local = {0: {0: 0.8, 1: 0.6, 2: 0.7, 3: 1.0}, 1: {0: 0.7}, 8: {0: 1.0}}
    found = clients(ours, local)
    assert (found.gained, found.hurt, found.count) == (0.5, 0.25, 4)
    assert clients({0: {0: 1.0}}, {1: {0: 1.0}}) is None
