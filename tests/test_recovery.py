"""Recovered memberships: the best match of columns, and the distance after it."""

import numpy as np
import pytest

from fedpers.results.membership_recovery import columns, recovery, user_group

TRUTH = np.array([[0.7, 0.2, 0.1], [0.0, 0.5, 0.5], [0.3, 0.3, 0.4]])


def test_the_order_of_canonical_models_is_free():
    for order in ([0, 1, 2], [2, 0, 1], [1, 0, 2]):
        assert recovery(TRUTH[:, order], TRUTH) == pytest.approx(np.zeros(3), abs=1e-15)


def test_total_variation_by_hand():
    found = np.array([[0.6, 0.3, 0.1], [0.0, 0.5, 0.5], [0.3, 0.3, 0.4]])
    assert recovery(found, TRUTH) == pytest.approx([0.1, 0, 0])
    uniform = np.full((3, 3), 1 / 3)
    assert recovery(uniform, TRUTH) == pytest.approx([0.7 - 1 / 3, 1 / 3, 0.4 - 1 / 3])


def test_groups_are_one_hot_shares():
    groups = np.array([1, 1, 0])
    assert recovery(np.array([[1.0, 0], [1, 0], [0, 1]]), groups) == pytest.approx([0, 0, 0])
    assert recovery(np.array([[1.0, 0], [0, 1], [0, 1]]), groups) == pytest.approx([0, 1, 0])


def test_more_or_fewer_canonical_models_than_truths():
    groups = np.array([0, 1, 2])
    four = np.eye(4)[[3, 0, 2]]
    assert recovery(four, groups) == pytest.approx([0, 0, 0])
    two = np.eye(2)[[0, 1, 1]]
    assert sorted(recovery(two, groups)) == pytest.approx([0, 0, 1])


def test_clients_that_never_trained_have_no_row():
    assert len(recovery(TRUTH[:2], TRUTH)) == 2


def test_the_column_is_there_where_both_sides_are_known():
    assert columns({"membership": TRUTH}, {"membership": TRUTH}) == {"recovery": pytest.approx(0)}
    assert columns({"membership": np.eye(2)}, {"group": np.array([1, 0])}) == {"recovery": 0}
    assert columns({"membership": TRUTH}, {"theta": TRUTH}) == {}
    moved = np.array([[0.9, 0.1], [0.2, 0.8]])  # importance weights of soft clusters
    assert columns({"importance": moved}, {"group": np.array([1, 0])}) == {"recovery": pytest.approx(0.15)}


def test_weight_on_the_own_group_by_owner_and_by_user():
    """Clients 0 and 1 use the models of 2 and 3 and the other way round: all models are taken over."""
    crossed = np.array([[0, 0, 0.6, 0.4], [0, 0, 0.5, 0.5], [0.9, 0.1, 0, 0], [0.2, 0.8, 0, 0]])
    group = np.array([0, 0, 1, 1])
    assert user_group(crossed, group).tolist() == [1, 1, 0, 0]
    assert columns({"collaboration": crossed}, {"group": group}) == {
        "own_group_weight": 0,
        "own_group_weight_by_user": pytest.approx(1),
        "takeovers": 4,
    }
    assert user_group(np.full((4, 4), 0.25), group).tolist() == [0, 0, 1, 1]  # a tie takes nothing over
    assert columns({"collaboration": crossed}, {}) == {}
