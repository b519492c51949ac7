"""Golden numbers: three rounds of every method on toys end where they did when last looked at.

They say that something moved, not that it was right: the methods' own tests compare with formulas.
After a change that is meant to move them: python -m tests.test_golden, and a line under Numbers in
CHANGELOG.md.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from fedpers.checks.contract import run
from fedpers.config.registry import METHODS
from tests.test_contract import case

FILE = Path(__file__).parent / "golden" / "toys.json"
TOLERANCE = 1e-4  # relative: float32 over a few rounds, on any machine


def measure(name: str) -> dict[str, float]:
    """Means over clients, after the last evaluation."""
    server, _ = run(case(name))
    return {k: float(np.nanmean(v)) for k, v in server.client_metrics.items() if k.endswith("_loss")}


@pytest.mark.parametrize("name", METHODS)
def test_golden(name):
    assert measure(name) == pytest.approx(json.loads(FILE.read_text())[name], rel=TOLERANCE)


def test_every_method_has_golden_numbers_and_no_other():
    assert set(json.loads(FILE.read_text())) == set(METHODS)


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: measure(name) for name in METHODS}, indent=1) + "\n")
