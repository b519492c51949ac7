"""A linear recurrence of models, written with fewer of them and with each at a speed of its own.

Products of models with samples are what a recurrence costs, one for each model whose share in a point
counts. Models that no gradient reaches matter by a few mixtures of them only: w_y and w_z by their middle,
for one. Two models that learn, such as y and z, turn into one that keeps nearly all it has and one that
forgets in a few steps, whose products are those of a few samples.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

FAST = 0.5  # a model that keeps less of itself in a step is worth being told apart
STEEP = 100.0  # condition number from which on rounding would be worse than the products that are saved
NONE = 1e-10  # what is left of a row of shares, beside its largest, where others explain it


@dataclass(frozen=True)
class Few:
    """What the kernel is told: see motion.h."""

    order: list[int]  # the models that are given, those that learn first
    sizes: tuple[int, ...]  # of models given, models, models that learn, points, mixtures
    numbers: Tensor  # starts, moves, points, signs, gains, ends


def few_models(moves: Tensor, points: Tensor, signs: Tensor, gains: Tensor, ends: Tensor) -> Few:
    """The recurrence of models s = starts·given that gives the same points and ends [J, m]; all float64."""
    learn = _learning(moves, gains)
    learners, others = learn.nonzero()[:, 0].tolist(), (~learn).nonzero()[:, 0].tolist()
    own, drive = moves[learners][:, learners], moves[learners][:, others]
    to, back = _speeds(own)
    rows = torch.cat([points[:, others], to @ drive, ends[:, others]])
    basis, pivots = _spanned(rows, moves[others][:, others])
    L, r, m = len(learners), len(pivots), len(moves)

    def turned(rows: Tensor) -> Tensor:
        """Rows of shares in the models given, as shares in the new ones."""
        return torch.cat([rows[:, learners] @ back, rows[:, others][:, pivots]], 1)

    starts = torch.zeros(L + r, m, dtype=torch.float64)
    starts[:L, :L], starts[L:, L:] = to, basis
    still = basis @ moves[others][:, others]
    after = torch.zeros(L + r, L + r, dtype=torch.float64)
    after[:L, :L], after[:L, L:], after[L:, L:] = to @ own @ back, (to @ drive)[:, pivots], still[:, pivots]
    gained = torch.cat([to @ gains[learners], torch.zeros(r, dtype=torch.float64)])
    told = starts, after, turned(points), signs, gained, turned(ends)
    sizes = m, L + r, L, len(points), len(ends)
    return Few([*learners, *others], sizes, torch.cat([t.reshape(-1) for t in told]))


def _learning(moves: Tensor, gains: Tensor) -> Tensor:
    """[m] whether gradients reach a model, at once or by others."""
    learn = gains != 0
    for _ in moves:
        learn = learn | (moves[:, learn] != 0).any(1)
    return learn


def _speeds(own: Tensor) -> tuple[Tensor, Tensor]:
    """(V, V⁻¹) so that V own V⁻¹ is diagonal, if that tells a fast model from others; else the identity."""
    values, vectors = torch.linalg.eig(own)
    back = vectors.real
    if values.imag.any() or not (values.abs() < FAST).any() or torch.linalg.cond(back) > STEEP:
        return torch.eye(len(own), dtype=own.dtype), torch.eye(len(own), dtype=own.dtype)
    return torch.linalg.inv(back), back


def _spanned(rows: Tensor, moves: Tensor) -> tuple[Tensor, list[int]]:
    """(B, pivots): a basis of what `rows` and their images rows·movesᵏ span; B[:, pivots] is the identity."""
    basis, pivots, waiting = list[Tensor](), list[int](), list(rows)
    for row in waiting:
        size = row.abs().max() if len(row) else 0
        left = row - sum((row[p] * b for p, b in zip(pivots, basis, strict=True)), torch.zeros_like(row))
        if not len(row) or left.abs().max() <= NONE * size:
            continue
        pivots.append(int(left.abs().argmax()))
        new = left / left[pivots[-1]]
        basis = [*(b - b[pivots[-1]] * new for b in basis), new]
        waiting.append(new @ moves)
    return torch.stack(basis) if basis else rows[:0], pivots
