"""A LIBSVM file through a whole run, as the experiment on these sets has it."""

import math

import numpy as np
import pandas as pd
import pytest

from fedpers.app.run import execute
from fedpers.config import compose


@pytest.fixture
def root(tmp_path):
    """<root>/libsvm/tiny with 60 samples of three features, two classes that overlap."""
    rng = np.random.default_rng(0)
    x, noise = rng.normal(size=(60, 3)), rng.normal(size=60)
    lines = [
        f"{1 + (a[0] + e > 0)} " + " ".join(f"{j}:{v:.6f}" for j, v in enumerate(a, 1))
        for a, e in zip(x, noise, strict=True)
    ]
    (tmp_path / "libsvm").mkdir()
    (tmp_path / "libsvm" / "tiny").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_acd_is_as_fast_on_a_libsvm_file_as_its_theorem(root):
    """E[F - F*] <= (1-θ)^k P, P = F(0) - F* + μ/2 ‖0 - x*‖² <= 2 (F(0) - F*); by Markov's inequality
    a thousand times that is exceeded with a chance of at most 1/1000 in a round."""
    facts = execute(
        compose.load(
            [
                "+experiment=unified_libsvm",
                f"data.root={root}",
                "data.file=tiny",
                "data.num_clients=3",
                "method.objective.l2=0.05",
                "rounds=40",
                "checkpoint_every=0",
                "device=cpu",
            ]
        ),
        root / "out",
    )["optimum"]
    table = pd.read_csv(root / "out" / "metrics.csv").query("split == 'train'")
    nu = facts["mu"] / (math.sqrt(facts["L_w"]) + math.sqrt(facts["L_b"])) ** 2
    theta = (math.sqrt(nu**2 + 4 * nu) - nu) / 2
    potential = 2 * (facts["start"] - facts["objective"])
    assert facts["start"] == pytest.approx(math.log(2))
    allowed = 1e3 * potential * (1 - theta) ** table.iterations
    assert (table.suboptimality <= allowed + 1e-15).all()
    assert allowed.iloc[-1] < 0.1 * potential  # so that it says something
