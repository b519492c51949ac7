"""The picture of collaboration weights through training."""

from dataclasses import replace

import numpy as np
import pytest

from fedpers.checks.toy_data import toy_federation
from fedpers.results.plots import collaboration
from fedpers.results.plots.collaboration import draw


@pytest.mark.parametrize(("T", "K"), [(1, 6), (7, 6), (5, 4)])
def test_weights_through_training_are_drawn(tmp_path, T, K):
    """Also after one evaluation, and where the last clients are held out."""
    values = np.random.default_rng(0).dirichlet(np.ones(K), (T, K))
    stored = {"collaboration": values, "collaboration_round": np.arange(T)}
    for federation in (toy_federation(), replace(toy_federation(), truth={})):
        paths = draw(tmp_path, stored, federation)
        names = ["collaboration.png", "collaboration_over_rounds.png", "collaboration_by_user.png"]
        names = names if federation.truth else names[:2]
        assert [p.name for p in paths] == names
        assert all(p.read_bytes()[:4] == b"\x89PNG" for p in paths)
    assert draw(tmp_path, {"collaboration": values[0]}, toy_federation()) == []


def test_each_client_has_a_line_a_model_and_its_group_stands_out(tmp_path, monkeypatch):
    """The lines are the weights; those of the own group have another colour than the rest."""
    values = np.random.default_rng(0).dirichlet(np.ones(6), (5, 6))
    kept = []
    monkeypatch.setattr(collaboration.style, "save", lambda figure, path: kept.append(figure))
    collaboration.over_rounds(values, np.arange(5), tmp_path / "a.png", toy_federation())
    panels = {ax.get_title(loc="left"): ax for ax in kept[0].axes}
    group = toy_federation().truth["group"]
    assert sorted(panels) == [f"Client {i}" for i in range(6)]
    for i in range(6):
        lines = panels[f"Client {i}"].lines
        np.testing.assert_array_equal([line.get_ydata() for line in lines], values[:, i].T)
        inks = [line.get_color() for line in lines]
        assert all((inks[j] == inks[i]) == (group[j] == group[i]) for j in range(6))
