"""Numbers one can redo by hand."""

import math

import numpy as np
import pytest

from fedpers.core.metrics import summarise


def table(**columns):
    return {k: np.array(v, dtype=float) for k, v in columns.items()}


def test_weighted_by_samples_and_clients_equal():
    clients = table(test_num=[1, 3], test_loss=[2, 4], test_accuracy=[1, 0.5])
    numbers = summarise(clients, "test")
    assert numbers["loss"] == (1 * 2 + 3 * 4) / 4
    assert numbers["accuracy"] == (1 * 1 + 3 * 0.5) / 4
    assert numbers["accuracy_mean"] == 0.75
    assert numbers["worst_decile"] == 0.5


@pytest.mark.parametrize(("n", "expected"), [(10, 0.0), (11, 0.5), (20, 0.5), (21, 1.0)])
def test_worst_decile_is_the_mean_of_the_worst_tenth_rounded_up(n, expected):
    clients = table(test_num=np.ones(n), test_loss=np.ones(n), test_accuracy=np.arange(n)[::-1])
    assert summarise(clients, "test")["worst_decile"] == expected


def test_clients_without_samples_do_not_count():
    clients = table(valid_num=[0, 2], valid_loss=[math.nan, 1], valid_accuracy=[math.nan, 0.5])
    numbers = summarise(clients, "valid")
    assert numbers == {"loss": 1, "accuracy": 0.5, "accuracy_mean": 0.5, "worst_decile": 0.5}


def test_regression_has_no_accuracy_and_the_worst_loss():
    clients = table(test_num=[1, 1], test_loss=[1, 3], test_accuracy=[math.nan, math.nan])
    numbers = summarise(clients, "test")
    assert numbers["worst_decile"] == 3
    assert math.isnan(numbers["accuracy"])
    assert math.isnan(numbers["accuracy_mean"])


def test_nobody_has_samples():
    clients = table(valid_num=[0], valid_loss=[math.nan], valid_accuracy=[math.nan])
    assert all(math.isnan(v) for v in summarise(clients, "valid").values())


def test_before_adaptation_is_separate():
    clients = table(
        test_num=[1, 1],
        test_loss=[1, 1],
        test_accuracy=[1, 1],
        test_loss_before=[2, 4],
        test_accuracy_before=[0.5, 0],
    )
    numbers = summarise(clients, "test")
    assert numbers["accuracy"] == 1
    assert numbers["accuracy_before"] == 0.25
    assert numbers["loss_before"] == 3
    assert numbers["worst_decile_before"] == 0


def test_a_loss_that_blew_up_shows():
    clients = table(test_num=[1, 1], test_loss=[math.inf, 1], test_accuracy=[0, 1])
    assert summarise(clients, "test")["loss"] == math.inf
