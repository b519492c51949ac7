"""The picture of accuracy against rounds since a client's last visit, and what it is drawn from."""

import numpy as np
import pytest

from fedpers.checks.toy_data import toy_federation
from fedpers.core.rng import server_rng
from fedpers.results import files
from fedpers.results.plots.visits import draw
from tests.methods.helpers import config, network, simulated


@pytest.mark.parametrize("name", ["pflego", "fedrecon"])
def test_last_visits_are_those_of_the_rounds(name):
    """Three of six clients a round, three rounds; who never came has 0."""
    fed = toy_federation()
    strategy, _ = simulated(
        name, config(name), fed, network(fed, "mlp"), 3, clients_per_round=3, dtype="float32"
    )
    want = np.zeros(6, int)
    for t in (1, 2, 3):
        want[strategy.sample(server_rng(strategy.plan.seed, t))] = t
    assert strategy.arrays()["last_visit"].tolist() == want.tolist()


def table(folder, accuracy, **more):
    columns = {"partition_id": range(len(accuracy)), "accuracy": accuracy, **more}
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    files.replace_csv(folder / "clients.csv", rows, list(rows[0]))


def stored(*visits):
    return {"last_visit": np.array([visits]), "last_visit_round": np.array([9])}


def test_the_picture_is_drawn_where_visits_differ(tmp_path):
    table(tmp_path, [0.9, 0.8, 0.7, 0.6], accuracy_before=[0.5, 0.4, float("nan"), 0.2])
    (path,) = draw(tmp_path, tmp_path, stored(9, 4, 1, 0))  # the last never came
    assert (path.name, path.read_bytes()[:4]) == ("last_visit.png", b"\x89PNG")
    assert draw(tmp_path, tmp_path, stored(9, 9, 9, 0)) == []
    assert draw(tmp_path, tmp_path, {}) == []
    assert draw(tmp_path / "nothing", tmp_path, stored(9, 4, 1, 0)) == []


def test_new_clients_have_no_visits(tmp_path):
    table(tmp_path, [0.9, 0.8, 0.7])
    assert len(draw(tmp_path, tmp_path, stored(3, 1))) == 1
