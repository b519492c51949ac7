"""Which iterate is handed out: its weight, and drawing it without keeping the trajectory."""

from collections import Counter

import numpy as np
import pytest

from fedpers.families.mixtures.stationarity import block_weight, offer


def drawn(weights, seed):
    rng, kept = np.random.default_rng(seed), None
    for t, q in enumerate(weights):
        kept = offer(kept, t, q, rng)
    return kept


@pytest.mark.parametrize("weights", [[1, 1, 1, 1], [0.5, 0, 2, 1.5], [0, 3, 1, 0]])
def test_each_iterate_is_drawn_in_proportion_to_its_weight(weights):
    draws = 4000
    count = Counter(drawn(weights, seed).value for seed in range(draws))
    total = sum(weights)
    for t, q in enumerate(weights):
        share = q / total
        assert abs(count[t] / draws - share) <= 4.5 * np.sqrt(share * (1 - share) / draws)
    assert drawn(weights, 0).total == total


def test_weights_by_hand():
    """eta = 0.1, rho = (0.25, 0.75), L = (1, 4): min(0.025 · 0.6, 0.075 · 0.8) = 0.015."""
    assert block_weight(0.1, 0.25, 1.0, 4.0) == pytest.approx(0.015, rel=1e-12)
    assert block_weight(0.1, 0.9, 0.0, 4.0) == pytest.approx(0.1 * 0.1 * 0.8, rel=1e-12)
    assert block_weight(0.5, 0.5, 0.0, 4.0) == 0  # eta = 2/L_2 leaves nothing
    assert block_weight(0.5, 0.5, 1.0, 0.0) < 0
