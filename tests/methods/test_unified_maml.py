"""Explicit MAML as an objective (eq. 19): gradients in closed form, and where it may be used."""

import numpy as np
import pytest
import torch

from fedpers.config import compose
from fedpers.core.errors import ConfigError
from fedpers.families.unified.config import ObjectiveConfig
from fedpers.families.unified.objectives import make_objective
from tests.unified import W, linear_model, logistic, make, quadratics, rounds


def maml(fed, **options):
    return make_objective(ObjectiveConfig(objective="maml", **options), linear_model(fed), fed.num_clients)


def test_gradient_of_explicit_maml_is_the_closed_form():
    """f' = 1/2 (w-t)ᵀA(w-t): the step leaves B(w-t), B = I - αA, and the gradient is BAB(w-t)."""
    a, t, w = np.array([0.3, 1.0, 2.0]), np.array([[1.0, -2.0, 0.5]]), np.array([[0.2, 0.1, -0.4]])
    f, data = maml(quadratics(t, a), alpha=0.4), quadratics(t, a).client(0).train
    at, b = {W: torch.from_numpy(w)}, 1 - 0.4 * a
    np.testing.assert_allclose(f.grad_w(at, {}, data)[W], b * a * b * (w - t), atol=1e-12)
    assert float(f.value(at, {}, data)) == pytest.approx(0.5 * np.sum(a * (b * (w - t)) ** 2))
    np.testing.assert_allclose(f.adapted(at, data)[W], t + b * (w - t), atol=1e-12)


def test_gradient_of_explicit_maml_is_autograds():
    f, data = maml(logistic(), alpha=0.7, l2=0.1), logistic().client(0).train
    w = {W: torch.randn(1, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)}
    expected = torch.func.grad(f.value)(w, {}, data)[W]
    np.testing.assert_allclose(f.grad_w(w, {}, data)[W], expected, atol=1e-12)


@pytest.mark.parametrize("overrides", [["method=acd"], ["method=lsgd"], ["method=lsgd", "method.eta=0.1"]])
def test_maml_is_only_for_local_sgd_with_a_step_of_its_own(overrides):
    with pytest.raises(ConfigError, match="objective=maml is not convex: only method=lsgd"):
        compose.load([*overrides, "method.objective=maml"])


def test_local_sgd_finds_what_is_best_after_a_step():
    """Quadratics with A_m = a I: every B_m is alike, so the best w is the mean of the targets."""
    fed = quadratics([[0.0, 1.0], [2.0, 5.0]], 0.5)
    strategy, _, grid = make("lsgd", fed, objective="maml", alpha=0.4, eta=1.0, tau=1, batch_size=0)
    rounds(strategy, grid, 80)
    np.testing.assert_allclose(strategy.state.w.y[W], [[1.0, 3.0]], atol=1e-8)  # contracts by 0.68
