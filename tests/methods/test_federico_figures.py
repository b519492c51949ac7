"""FedeRiCo's introductory example: on its own interval no client does worse than alone."""

import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "federico_sine.py"


@pytest.fixture(scope="module")
def sine():
    """What the script that measures the figure defines."""
    return runpy.run_path(str(SCRIPT))


def test_no_client_of_the_sine_curve_does_worse_than_alone(sine):
    ratios = sine["errors"]("federico", 0, []) / sine["errors"]("local", 0, [])
    assert ratios.shape == (8,) and ratios.max() < 1.001


def test_its_limit_has_each_client_at_its_own_line(sine):
    own, mixed = sine["least_squares"](0)
    assert own.min() > 0.008 and (mixed / own).max() < 1.01  # the noise's variance is 0.01
