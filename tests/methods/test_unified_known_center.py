"""Objectives with w'* known beforehand: their minima in closed form, and what is refused."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fedpers.core.errors import ConfigError
from fedpers.core.params import scale
from tests.unified import W, blocks, flat, make, quadratics, rounds, settings

TARGETS = [[0.0, 3.0], [2.0, -1.0], [4.0, 1.0]]
CURVATURES = np.array([1.0, 0.5])
CENTER = np.array([1.0, 2.0])


@pytest.fixture
def center(tmp_path):
    path = tmp_path / "shared.safetensors"
    save_file({W: torch.tensor(CENTER[None])}, path)
    return str(path)


@pytest.mark.parametrize("method", ["acd", "lsgd"])
def test_each_client_ends_where_its_own_objective_is_least(method, center):
    """MT: (a t_m + λ w'*)/(a + λ) for curvatures a; APFL: the mixed model is t_m itself."""
    t, lam, alpha = np.array(TARGETS), 0.3, 0.25
    expected = {
        "mt": (CURVATURES * t + lam * CENTER) / (CURVATURES + lam),
        "apfl": (t - alpha * CENTER) / (1 - alpha),
    }
    of_lsgd = {"batch_size": 0, "tau": 400} if method == "lsgd" else {"max_local": 400}
    for name, key in (("mt", {"lam": lam}), ("apfl", {"alpha": alpha})):
        fed = quadratics(TARGETS, CURVATURES)
        options = {"objective": name, "center": center, "mu": 0.5, "L": 1.0, "cL": 1.0, **key}
        strategy, cohort, grid = make(method, fed, **options, **of_lsgd)
        rounds(strategy, grid, 3)
        w, betas = blocks(strategy, cohort)
        assert w == {}
        np.testing.assert_allclose([flat(b) for b in betas], expected[name], atol=1e-6)
        told = [
            cohort.client.personal(strategy.evaluation_message(strategy.state, 0), cohort.state(0, (99, 0)))
        ]
        wanted = t[0] if name == "apfl" else expected["mt"][0]
        np.testing.assert_allclose(flat(told[0]), wanted, atol=1e-6)


def test_gradients_are_autograds(center):
    from fedpers.families.unified.objective import Objective, make_objective

    fed = quadratics(TARGETS, CURVATURES)
    for name in ("mt", "apfl"):
        strategy, _, _ = make("acd", fed, objective=name, center=center, mu=0.5, L=1.0, cL=1.0)
        f = make_objective(strategy.config.objective, strategy.model, 3)
        beta, data = {W: torch.tensor([[0.7, -0.4]], dtype=torch.float64)}, fed.client(1).train
        expected = Objective.grad_beta(f, {}, beta, data)
        np.testing.assert_allclose(flat(f.grad_beta({}, beta, data)), flat(expected), atol=1e-14)


def test_multi_task_learning_is_the_limit_of_its_relaxed_form(center, tmp_path):
    """MT2 with a heavy shared loss: u is the minimum of the mean loss, and β_m that of MT around it."""
    fed, lam = quadratics(TARGETS, CURVATURES), 0.3
    of_mt2 = {"objective": "mt2", "lam": lam, "Lambda": 1e6, "mu": 0.5, "L": 1.0, "cL": 1.0}
    from fedpers.families.unified.optimum import solve

    strategy, _, _ = make("acd", fed, **of_mt2)
    parts = [fed.client(m).train for m in range(3)]
    best = solve(strategy.objective, parts, {W: torch.zeros(1, 2, dtype=torch.float64)})
    u = scale(best.w, 3**-0.5)
    np.testing.assert_allclose(flat(u), np.mean(TARGETS, 0), atol=1e-5)
    save_file({k: v.contiguous() for k, v in u.items()}, tmp_path / "u.safetensors")
    of_mt = {"objective": "mt", "lam": lam, "mu": 0.5, "L": 1.0, "cL": 1.0}
    strategy, cohort, grid = make("acd", fed, center=str(tmp_path / "u.safetensors"), max_local=400, **of_mt)
    rounds(strategy, grid, 3)
    np.testing.assert_allclose(
        [flat(b) for b in blocks(strategy, cohort)[1]], [flat(b) for b in best.betas], atol=1e-5
    )


def test_a_center_that_is_missing_or_of_another_shape_is_named(center, tmp_path):
    assert settings("mt", center=center).check() == []
    with pytest.raises(ConfigError, match=r"center=nowhere\.safetensors: cannot be read"):
        make("acd", quadratics(TARGETS), objective="mt", center="nowhere.safetensors")[0].objective  # noqa: B018
    with pytest.raises(ConfigError, match=r"holds .*, and the model has"):
        make("lsgd", quadratics([[1.0], [2.0]]), objective="mt", center=center)
