"""Several models of one shape: starts, measurements, means; proximal terms; draws; exact solutions."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedpers.core.data import Data
from fedpers.core.errors import ConfigError, FedpersError
from fedpers.core.params import combine, sq_dist
from fedpers.core.sampling import draw
from fedpers.families.clustered.centers import (
    center_losses,
    nearest_center,
    nearest_shares,
    new_centers,
    new_mean,
    pick,
)
from fedpers.families.clustered.least_squares import least_squares, require_least_squares
from fedpers.flower.evaluation import measure_centers
from fedpers.learning.gradients import grad
from fedpers.learning.losses import pull, soft_proximal
from fedpers.learning.model import build_model
from tests.mixtures import linear, part


def tree(*values):
    """A small dict of tensors."""
    return {"a": torch.tensor(values).double(), "b": torch.tensor([[2.0 * v for v in values]]).double()}


def test_blend_is_the_weighted_sum_and_differentiable():
    items, weights = [tree(1, 2), tree(3, 5)], torch.tensor([0.5, 2.0]).double()
    assert combine(items, weights)["a"].tolist() == [6.5, 11.0]
    slope = grad(lambda w: combine(items, w)["b"].sum())(weights)
    assert slope.tolist() == [6.0, 16.0]
    stacked = torch.func.vmap(lambda w: combine(items, w)["a"])(torch.eye(2).double())
    assert stacked.tolist() == [[1, 2], [3, 5]]


def test_pull_differs_from_the_squared_distances_by_a_constant():
    centers, u = [tree(1, -1), tree(0.5, 3)], [0.6, 0.7]
    cbar = combine(centers, torch.tensor(u).double())

    def far(w):
        return 0.5 * sum(u_s * sq_dist(w, c) for u_s, c in zip(u, centers, strict=True))

    points = [tree(0, 0), tree(1, 2), tree(-3, 0.1)]
    gaps = [float(far(w) - pull(w, 1.3, cbar)) for w in points]
    assert gaps == pytest.approx([gaps[0]] * 3)
    for w in points:
        slope = grad(lambda v: pull(v, 1.3, cbar))(w)
        for k in w:
            torch.testing.assert_close(slope[k], 1.3 * w[k] - cbar[k])
            torch.testing.assert_close(slope[k], grad(far)(w)[k])


def test_pulled_without_weight_is_the_loss_itself():
    def loss(w, data):
        return (w["a"] ** 2).sum()

    assert soft_proximal(loss, 0.0, 1.0, tree(1, 2)) is loss
    value = soft_proximal(loss, 2.0, 1.0, tree(1, 2))(tree(3, 1), None)
    assert float(value) == 10 + 2 * (0.5 * (10 + 40) - (5 + 4 * 5))


def test_new_centers_differ_and_do_not_touch_the_global_generator():
    model = build_model("mlp", input_shape=(3,), num_outputs=2, task="classification", hidden=[4])
    like = {k: v.double() for k, v in model.init(0).items()}
    state = torch.get_rng_state()
    centers = new_centers(model, 3, like, np.random.default_rng(0))
    assert torch.equal(state, torch.get_rng_state())
    weights = [c["head.weight"] for c in centers]
    assert weights[0].dtype == torch.float64
    assert not any(torch.equal(weights[i], weights[j]) for i in range(3) for j in range(i))
    again = new_centers(model, 3, like, np.random.default_rng(0))
    assert torch.equal(again[2]["head.weight"], weights[2])


def test_losses_and_shares_of_centers():
    model = linear(1)
    centers = [{"head.weight": torch.tensor([[c]]).double()} for c in (0.0, 4.0)]
    data = part([[1.0]] * 3, [1.0, 3.0, 2.0])
    assert center_losses(model, centers, data).tolist() == [[1, 9, 4], [9, 1, 4]]
    np.testing.assert_allclose(nearest_shares(model, centers, data), [2 / 3, 1 / 3])


@pytest.mark.parametrize("own", [False, True])
def test_a_picked_center_is_the_clients_own_or_everybodys(own):
    """Alone, under vmap with centers that all clients share, and with centers of each client's own."""
    centers = [tree(1, 2), tree(3, 5), tree(-1, 0.5)]
    assert all(torch.equal(v, centers[2][k]) for k, v in pick(centers, torch.tensor(2)).items())
    factor = torch.arange(1.0, 5).double() if own else torch.ones(4).double()

    def one(number, c):
        return pick([{k: c * v for k, v in w.items()} for w in centers] if own else centers, number)

    numbers = torch.tensor([2, 0, 0, 1])
    found = torch.vmap(one)(numbers, factor)
    for i, (number, c) in enumerate(zip(numbers.tolist(), factor, strict=True)):
        for k, v in found.items():
            torch.testing.assert_close(v[i], c * centers[number][k], rtol=0, atol=0)


def test_the_nearest_center_is_that_of_the_least_mean_loss_without_padding():
    model = linear(1)
    centers = [{"head.weight": torch.tensor([[c]]).double()} for c in (0.0, 4.0)]
    data = part([[1.0]] * 3, [2.0, 2.0, 4.0])
    assert int(nearest_center(model, centers, data)) == 1
    for y in (4.0, torch.nan):  # of padding; what is left is as far from both, and the first is taken
        padded = replace(data, y=data.y.new_tensor([2.0, 2.0, y]), mask=data.mask.new_tensor([1.0, 1.0, 0.0]))
        assert int(nearest_center(model, centers, padded)) == 0


def test_means_of_those_that_replied():
    models = {0: tree(1, 1), 2: tree(4, 4)}
    assert new_mean(tree(9, 9), models, {0: 2.0, 1: 5.0, 2: 1.0})["a"].tolist() == [2, 2]
    assert new_mean(tree(9, 9), models, {1: 1.0})["a"].tolist() == [9, 9]


def test_accuracy_of_centers_in_several_pieces():
    model = build_model("logistic", input_shape=(1,), num_outputs=2, task="classification")
    right = {"head.weight": torch.tensor([[-1.0], [1.0]]), "head.bias": torch.zeros(2)}
    wrong = {k: -v for k, v in right.items()}
    x = torch.linspace(-1, 1, 2501)[:, None] + 1e-4
    data = Data(x, (x[:, 0] > 0).long(), torch.ones(2501))
    flipped = Data(x, 1 - data.y, data.mask)
    found = measure_centers(model, {"a": right, "b": wrong}, {"s0": data, "s1": flipped})
    assert found["center_metric"].tolist() == [[1, 0], [0, 1]]
    expected = float(model.loss(right, data))
    assert found["center_loss"][0, 0] == pytest.approx(expected, rel=1e-5)
    assert measure_centers(model, {}, {"s0": data}) == measure_centers(model, {"a": right}, {}) == {}


def test_draws():
    rng = np.random.default_rng(0)
    assert draw(rng, np.array([0.2, 0.0, 0.8]), 2, replace=False) == [0, 2]
    assert draw(rng, np.array([0.0, 3.0]), 4, replace=True) == [1, 1, 1, 1]
    with pytest.raises(FedpersError, match="only 1 have a positive"):
        draw(rng, np.array([0.0, 3.0]), 2, replace=False)


def test_least_squares_with_an_intercept_padding_and_two_outputs():
    """The gradient of the objective vanishes at the solution, and padding is not seen."""
    rng = np.random.default_rng(1)
    model = build_model("linear", input_shape=(3,), num_outputs=2, task="regression")
    data = Data(
        *(torch.tensor(rng.normal(size=s)) for s in ((9, 3), (9, 2))),
        torch.tensor([1.0] * 7 + [0.0] * 2).double(),
    )
    cbar = {k: torch.tensor(rng.normal(size=v.shape)) for k, v in model.init(0).items()}
    w = least_squares(model, data, 0.8, 1.2, cbar)
    slope = grad(soft_proximal(model.loss, 0.8, 1.2, cbar))(w, data)
    for value in slope.values():
        torch.testing.assert_close(value, torch.zeros_like(value), rtol=0, atol=1e-13)


def test_least_squares_refuses_other_models():
    require_least_squares(linear(2))
    with pytest.raises(ConfigError, match="not model=mlp"):
        require_least_squares(
            build_model("mlp", input_shape=(3,), num_outputs=1, task="regression", hidden=[2])
        )
