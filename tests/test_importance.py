"""Importance weights: the shares of foreign samples in centers, and how far centers are apart."""

import logging
import math

import pytest
import torch

from fedpers.families.clustered.importance import flattening, foreign_shares, separation, signs_of_collapse

U = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]]).double()


def models(*values):
    return [{"w": torch.tensor([v, 0.0])} for v in values]


def test_shares_of_foreign_samples_by_hand():
    """Center 0 is client 0 twice and client 1 once, center 1 is client 2 alone."""
    assert foreign_shares(U, [{0: 2.0, 1: 1.0}, {2: 1.0}]) == pytest.approx([1 - (2 * 0.9 + 0.2) / 3, 0.5])
    assert foreign_shares(2 * U, [{0: 1.0}, {1: 1.0}]) == pytest.approx([0.1, 0.2])  # smoothed rows exceed 1


def test_centers_as_far_apart_as_their_distance_over_the_spread_of_clients():
    clients = models(0.0, 6.0)  # 3 from their mean each
    assert separation(models(0.0, 12.0, 4.0), clients) == pytest.approx(4 / 3)
    assert separation(models(5.0, 5.0), clients) == 0
    assert math.isnan(separation(models(5.0), clients))
    assert math.isnan(separation(models(0.0, 1.0), models(2.0, 2.0)))


def test_all_signs_are_columns():
    found = signs_of_collapse(U, [{0: 1.0}, {1: 1.0}], models(0.0, 3.0), models(0.0, 6.0))
    expected = {
        "importance_max": (0.9 + 0.8 + 0.5) / 3,
        "separation": 1.0,
        "foreign_0": 0.1,
        "foreign_1": 0.2,
    }
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(("K", "level"), [(6, "INFO"), (10, "WARNING")])
def test_a_draw_of_everybody_is_warned_of(K, level, caplog):
    with caplog.at_level(logging.INFO, "fedpers"):
        flattening(K, 10)
    assert [r.levelname for r in caplog.records] == [level] and f"method.K={K} of 10" in caplog.text
