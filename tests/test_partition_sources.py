"""Partitions in which clients see the set differently."""

import numpy as np
import pytest

from fedpers.core.errors import DataError
from fedpers.datasets.sources import (
    MIXTURES,
    _blend,
    mixture,
    parse_source,
    permutations,
    rotations,
    uniform_classes,
    whole_counts,
)


def rng(seed=0):
    return np.random.default_rng(seed)


def labels(n, classes, seed):
    """`n` class numbers, each class at least once."""
    return rng(seed).permutation(np.arange(n) % classes)


def test_rotations_turn_whole_clients():
    result = rotations(np.arange(40), np.arange(20), 6, rng(), (0, 90, 270))
    assert [s.turns for s in result.sources] == [0, 1, 3]
    assert result.truth["group"].tolist() == [0, 0, 1, 1, 2, 2]
    assert all((s == g).all() for s, g in zip(result.train_source, [0, 0, 1, 1, 2, 2], strict=True))


def test_permutations_keep_the_first_group():
    result = permutations(labels(50, 10, 0), np.arange(10), 4, rng(), 3)
    assert (result.sources[0].labels == np.arange(10)).all()
    assert all(sorted(s.labels) == list(range(10)) for s in result.sources)


def test_mixture_counts_are_floors_and_the_last_takes_the_rest():
    def counts(name, n, sources=2):
        return whole_counts(MIXTURES[name].draw(len(n), sources, rng()), n)

    n = np.array([100, 190, 105, 107])
    assert counts("10:90", n).tolist() == [[10, 90], [19, 171], [94, 11], [96, 11]]
    assert counts("10:90 in turn", n).tolist() == [[10, 90], [171, 19], [10, 95], [96, 11]]
    linear = counts("linear", np.full(100, 200))
    assert linear[0].tolist() == [1, 199] and linear[99].tolist() == [199, 1]
    random = counts("random", n, 5)
    assert (random.sum(axis=1) == n).all() and (random >= 0).all()


def test_mixture_sizes_and_truth():
    y = labels(5000, 10, 0)
    result = mixture(y, y, 30, rng(), ("all@0", "all@90"), "30:70", True, 100, 200, 0.2)
    sizes = np.array([len(h) for h in result.train])
    assert sizes.min() >= 100 and sizes.max() <= 200
    membership = result.truth["membership"]
    np.testing.assert_allclose(membership.sum(axis=1), 1)
    np.testing.assert_allclose(membership[:15, 0], 0.3, atol=0.01)
    for k in range(30):
        assert (result.train_source[k] == 1).mean() == pytest.approx(membership[k, 1])
        assert len(result.test[k]) == np.ceil(sizes[k] * 0.2)


def test_mixture_without_replacement_uses_no_sample_twice():
    y = labels(2000, 10, 0)
    options = {
        "sources": ("all@0", "all@90"),
        "mixture": "random",
        "replacement": False,
        "min_samples": 50,
        "max_samples": 60,
        "test_fraction": 0.2,
    }
    result = mixture(y, y, 20, rng(), **options)
    dealt = np.concatenate(result.train)
    assert len(np.unique(dealt)) == len(dealt)
    with pytest.raises(DataError, match="without replacement needs"):
        mixture(y, y, 60, rng(), **options)


def test_mixture_of_cases_takes_only_its_letters():
    y = labels(62 * 20, 62, 0)
    ways = (parse_source("lower", 62), parse_source("upper@90", 62))
    hands = _blend(y, np.array([[30, 20]]), ways, True, rng())
    assert (y[hands[0][:30]] >= 36).all()
    assert ((y[hands[0][30:]] >= 10) & (y[hands[0][30:]] < 36)).all()
    assert ways[1].turns == 1 and ways[1].labels[10] == 0 and ways[0].labels[61] == 25
    with pytest.raises(DataError, match="47 classes"):
        parse_source("lower", 47)


def test_uniform_classes_ignore_how_often_a_class_occurs():
    y = np.array([0] * 990 + [1] * 10)
    drawn = y[uniform_classes(np.arange(1000), y, 4000, rng())]
    assert abs(drawn.mean() - 0.5) < 0.04  # 5 standard deviations
