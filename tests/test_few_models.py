"""A recurrence of fewer models gives the same points, and so the same mixtures at its end."""

import pytest
import torch

from fedpers.learning.kernels.few_models import few_models

F64 = torch.float64


def numbers(*rows):
    return torch.tensor(rows, dtype=F64)


SLOW = numbers([0.9, 0.05], [0.1, 0.8])
FAST = numbers([0.2, 0.79], [-0.001, 0.999])
TURNING = numbers([0.4, 0.3], [-0.5, 0.3])  # complex
DEFECTIVE = numbers([0.3, 1.0], [0.0, 0.3])


def recurrence(own, seed=0, points=2, others=4):
    """(moves, points, signs, gains, ends); the models that learn are the second and the fourth."""
    rng = torch.Generator().manual_seed(seed)
    m = 2 + others
    moves = 0.3 * torch.randn(m, m, generator=rng, dtype=F64)
    learners, rest = [1, 3], [i for i in range(m) if i not in (1, 3)]
    for i in rest:
        moves[i] = torch.eye(m, dtype=F64)[i]
    moves[rest[0], rest[1]] = 0.1  # one moves by another
    moves[1, 1], moves[1, 3], moves[3, 1], moves[3, 3] = own.flatten()
    gains = torch.zeros(m, dtype=F64)
    gains[learners] = numbers([-0.2, 0.1])[0]
    at, ends = (torch.randn(n, m, generator=rng, dtype=F64) for n in (points, 3))
    return moves, at, torch.tensor([1.0, -0.7], dtype=F64)[:points], gains, ends


def played(moves, points, signs, gains, ends, models, steps):
    """The mixtures at the end, of models of five numbers each; gradients are no linear function of them."""
    for t in range(steps):
        g = signs @ torch.sin(points @ models + t)
        models = moves @ models + gains[:, None] * g
    return ends @ models


def parts(few):
    given, m, _, Q, J = few.sizes
    shapes = (m, given), (m, m), (Q, m), (Q,), (m,), (J, m)
    split = few.numbers.split([torch.Size(s).numel() for s in shapes])
    return [t.reshape(s) for t, s in zip(split, shapes, strict=True)]


@pytest.mark.parametrize(
    "own", [SLOW, FAST, TURNING, DEFECTIVE], ids=["slow", "fast", "turning", "defective"]
)
@pytest.mark.parametrize("points", [1, 2])
@pytest.mark.parametrize("steps", [0, 1, 7, 40])
def test_the_same_ends(own, points, steps):
    told = recurrence(own, seed=steps, points=points)
    few = few_models(*told)
    given = torch.randn(6, 5, generator=torch.Generator().manual_seed(1), dtype=F64)
    starts, *fewer = parts(few)
    found = played(*fewer, starts @ given[few.order], steps)
    assert torch.allclose(found, played(*told, given, steps), rtol=1e-9, atol=1e-9)
    assert few.order[:2] == [1, 3] and few.sizes[0] == 6 and few.sizes[2] == 2


def test_others_count_by_the_mixtures_that_matter():
    """Two models that rest and are seen by 0.25 of one and 1 of the other: one model, that mixture."""
    moves = torch.eye(4, dtype=F64)
    moves[:2] = numbers([0.9, 0.05, 0.01, 0.04], [0.1, 0.8, 0.02, 0.08])
    few = few_models(
        moves, numbers([0.5, 0.5, 0.0, 0.0]), torch.ones(1, dtype=F64), numbers([-1, -2, 0, 0])[0],
        numbers([1, 0, 0, 0], [0, 1, -0.1, -0.4]),
    )  # fmt: skip
    assert few.sizes == (4, 3, 2, 1, 2)
    assert torch.allclose(parts(few)[0][2], numbers([0, 0, 0.25, 1])[0])


def test_what_nothing_depends_on_is_left_out():
    moves = torch.eye(3, dtype=F64)
    few = few_models(
        moves, numbers([1, 0, 0]), torch.ones(1, dtype=F64), numbers([-1, 0, 0])[0], numbers([1, 0, 0])
    )
    assert few.sizes == (3, 1, 1, 1, 1)


def test_a_fast_model_is_told_apart_and_no_other():
    own = {id(o): parts(few_models(*recurrence(o)))[:2] for o in (SLOW, FAST, TURNING, DEFECTIVE)}
    starts, moves = own.pop(id(FAST))
    speeds = moves[:2, :2]
    assert not torch.equal(starts[:2, :2], torch.eye(2, dtype=F64))
    assert torch.allclose(speeds, torch.diag(speeds.diag()), atol=1e-15)
    assert all(torch.equal(s[:2, :2], torch.eye(2, dtype=F64)) for s, _ in own.values())


def test_one_that_learns_from_another_that_learns_is_no_other():
    """It has no gradient itself."""
    moves = numbers([0.9, 0.0], [0.5, 0.5])
    few = few_models(moves, numbers([0, 1]), torch.ones(1, dtype=F64), numbers([-1, 0])[0], numbers([0, 1]))
    assert few.sizes[2] == 2


def test_what_is_seen_later_or_at_the_end_only_is_kept():
    """The second moves by the third, which nothing else sees; the fourth is in what is wanted alone."""
    moves = torch.eye(4, dtype=F64)
    moves[0, 1], moves[1, 2] = 0.5, 0.1
    told = moves, numbers([1, 0, 0, 0]), torch.ones(1, dtype=F64), numbers([-1, 0, 0, 0])[0]
    few = few_models(*told, numbers([1, 0, 0, 2]))
    starts, *fewer = parts(few)
    assert few.sizes == (4, 4, 1, 1, 1)
    given = torch.randn(4, 5, generator=torch.Generator().manual_seed(1), dtype=F64)
    assert torch.allclose(played(*fewer, starts @ given, 3), played(*told, numbers([1, 0, 0, 2]), given, 3))
