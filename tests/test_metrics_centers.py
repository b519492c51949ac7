"""Columns and pictures about centers."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes

from fedpers.core.metrics import of_centers, on_training_data
from fedpers.results.plots import centers as plots_centers
from fedpers.results.report.paper import paper_columns, paper_value


def test_the_better_center_of_each_source() -> None:
    table = np.array([[3.0, 9.0], [5.0, 2.0]])  # center 0 suits source 0
    columns = of_centers(table, smaller_is_better=True)
    assert columns == {
        "center_best_0": 3,
        "center_best_1": 2,
        "center_worst_0": 5,
        "center_worst_1": 9,
        "centers_apart": 1,
        "centers_spread": 4.5,
    }
    columns = of_centers(table, smaller_is_better=False)
    assert (columns["center_best_0"], columns["center_worst_1"]) == (5, 2)
    assert of_centers(np.array([[1.0, 1.0], [2.0, 2.0]]), True)["centers_apart"] == 0


def test_the_clients_metric_on_training_data_counts_clients_equally() -> None:
    clients = {
        "train_num": np.array([1.0, 99.0]),
        "train_loss": np.array([1.0, 3.0]),
        "train_accuracy": np.array([np.nan, np.nan]),
    }
    assert on_training_data(clients) == {"train_loss": 2.0}
    assert on_training_data({"test_loss": np.ones(2)}) == {}


def test_one_run_may_fill_several_cells_of_a_table() -> None:
    paper = {
        "column": "10:90",
        "metric": {"best": "center_best_0", "worst": "center_worst_0"},
        "values": {"m": {"10:90 best": 1.5, "10:90 worst": [2, 0.5]}},
    }
    assert paper_columns(paper) == {"10:90 best": "center_best_0", "10:90 worst": "center_worst_0"}
    assert paper_value(paper, "m", "10:90 worst") == (2.0, 0.5)
    assert paper_value(paper, "m") == (1.5, None)
    assert paper_columns({"metric": "loss", "column": "a"}) == {"a": "loss"}


def test_curves_of_centers_and_importance_weights(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    stored = {
        "center_metric": rng.random((4, 2, 3)),
        "center_metric_round": np.arange(4),
        "importance": rng.random((4, 5, 2)),
        "importance_round": np.arange(4),
        "truth_membership": rng.dirichlet([1, 1], 5),
    }
    drawn = plots_centers.draw(tmp_path, stored, regression=False)
    names = ["center_curves.png", "importance_curves.png", "importance_scatter.png"]
    assert [p.name for p in drawn] == names
    assert all(p.stat().st_size > 0 for p in drawn)
    stored["truth_membership"] = rng.dirichlet([1, 1], 7)  # of new clients too
    assert [p.name for p in plots_centers.draw(tmp_path, stored, regression=False)] == names
    del stored["truth_membership"]
    assert len(plots_centers.draw(tmp_path, stored, regression=True)) == 2
    assert plots_centers.draw(tmp_path, {}, regression=True) == []


def test_weights_that_are_right_lie_on_the_diagonal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever number a center has: a client's weights are over the shares of the sources that they fit."""
    true, points = np.random.default_rng(1).dirichlet([1, 1, 1], 9), []
    scatter = Axes.scatter
    monkeypatch.setattr(
        Axes, "scatter", lambda ax, x, y, **k: points.append((x, y)) or scatter(ax, x, y, **k)
    )
    plots_centers.importance_scatter(true[:, [2, 0, 1]], true, tmp_path / "scatter.png")
    assert len(points) == 3
    for s, (x, y) in enumerate(points):
        np.testing.assert_array_equal(x, true[:, s])
        np.testing.assert_array_equal(y, true[:, s])
