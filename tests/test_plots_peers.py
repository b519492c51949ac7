"""The picture of collaboration weights through training."""

from dataclasses import replace

import numpy as np
import pytest

from fedpers.checks.toy_data import toy_federation
from fedpers.results.plots.collaboration import draw


@pytest.mark.parametrize(("T", "K"), [(1, 6), (7, 6), (5, 4)])
def test_weights_through_training_are_drawn(tmp_path, T, K):
    """Also after one evaluation, and where the last clients are held out."""
    values = np.random.default_rng(0).dirichlet(np.ones(K), (T, K))
    stored = {"collaboration": values, "collaboration_round": np.arange(T)}
    for federation in (toy_federation(), replace(toy_federation(), truth={})):
        paths = draw(tmp_path, stored, federation)
        names = ["collaboration.png", "collaboration_by_user.png"][: 2 if federation.truth else 1]
        assert [p.name for p in paths] == names
        assert all(p.read_bytes()[:4] == b"\x89PNG" for p in paths)
    assert draw(tmp_path, {"collaboration": values[0]}, toy_federation()) == []
