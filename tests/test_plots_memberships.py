"""Pictures of memberships through training."""

import numpy as np

from fedpers.results.plots.memberships import draw, rows_and_columns

RNG = np.random.default_rng(0)
TRUE = RNG.dirichlet(np.full(3, 0.3), 12)


def test_models_are_in_the_order_of_the_truth_and_clients_by_their_largest_share():
    swapped = TRUE[:, [2, 0, 1]]
    clients, models = rows_and_columns(swapped, TRUE)
    assert models.tolist() == [1, 2, 0]
    shown = swapped[np.ix_(clients, models)]
    np.testing.assert_array_equal(shown, TRUE[clients])
    top = shown.argmax(1)
    assert (np.diff(top) >= 0).all()
    for k in range(3):
        assert (np.diff(shown[top == k].max(1)) <= 0).all()
    assert rows_and_columns(np.full((4, 2), 0.5), None)[1].tolist() == [0, 1]


def test_pictures_are_drawn_with_and_without_truth(tmp_path):
    values = np.stack([np.full((12, 3), 1 / 3), 0.5 * TRUE + 1 / 6, TRUE[:, [2, 0, 1]]])
    stored = {"membership": values, "membership_round": np.array([1, 10, 20])}
    names = lambda truth: [p.name for p in draw(tmp_path, stored, truth)]  # noqa: E731
    assert names({"membership": TRUE}) == ["memberships.png", "recovery.png"]
    assert names({"group": TRUE.argmax(1)}) == ["memberships.png", "recovery.png"]
    assert names({}) == ["memberships.png"]
    wide = {**stored, "membership": np.pad(values, ((0, 0), (0, 0), (0, 1)))}
    assert len(draw(tmp_path, wide, {"membership": TRUE})) == 2
    once = {"membership": values[:1], "membership_round": np.array([1])}
    assert draw(tmp_path, once, {}) == [] == draw(tmp_path, {}, {})
    assert all(p.read_bytes()[:4] == b"\x89PNG" for p in draw(tmp_path, stored, {"membership": TRUE}))
