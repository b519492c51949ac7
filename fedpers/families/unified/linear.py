"""Iterations that are linear but for gradients: what they do to the sequences, as matrices.

The matrices are found by running the method's own iteration once, on unit vectors in place of models.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedpers.core.data import Data
from fedpers.core.params import Params, add, scale
from fedpers.families.unified.messages import Block
from fedpers.families.unified.objective import Objective
from fedpers.learning.kernels.recurrent import Recurrence

Step = Callable[[Any, Block, Block], tuple[Block, Block]]  # (f, w, β) to (w, β)
MOST = 2  # gradients of an iteration


class Sequences:
    """The sequences that two blocks hold, in order: the private block's, then the shared one's."""

    def __init__(self, w: Block, beta: Block) -> None:
        held = [(b, name) for b in (1, 0) for name in "yzvG" if getattr((w, beta)[b], name)]
        self.names = held
        self.values: list[Params] = [getattr((w, beta)[b], name) for b, name in held]

    def kept(self, how: Recurrence) -> list[int]:
        """Those of the private block that move."""
        return [i for i in how.moving if self.names[i][0] == 1]

    def after(self, how: Recurrence, times: int, moved: Sequence[Params]) -> tuple[Block, Block]:
        """(w, β) after so many iterations, those of `kept` being `moved` then."""
        power = torch.linalg.matrix_power(how.moves, times)
        values = dict(zip(self.kept(how), moved, strict=True))
        return self.blocks(
            [values[i] if i in values else combination(row, self.values) for i, row in enumerate(power)]
        )

    def blocks(self, values: Sequence[Params]) -> tuple[Block, Block]:
        """(w, β) with other values of the sequences."""
        found: tuple[dict[str, Params], ...] = ({}, {})
        for (b, name), value in zip(self.names, values, strict=True):
            found[b][name] = value
        return tuple(Block(**{"y": {}, **fields}) for fields in found)  # type: ignore[return-value]


def recurrence_of(step: Step, f: Objective, sequences: Sequences) -> Recurrence | None:
    """How one iteration moves the sequences; None if it takes more gradients, or not all in one direction."""
    m = len(sequences.values)
    unit = torch.eye(m + MOST, dtype=torch.float64)
    points: list[Tensor] = []

    def slope(at: Params, data: Data) -> Params:
        points.append(at[""])
        return add({"": unit[m + len(points) - 1]}, at, f.config.l2)

    probe: Any = copy.copy(f)
    probe.loss_gradient = slope
    try:
        after = step(probe, *sequences.blocks([{"": unit[i]} for i in range(m)]))
    except IndexError:
        return None
    rows = torch.stack([getattr(after[b], name)[""] for b, name in sequences.names])
    moves, gains, Q = rows[:, :m], rows[:, m : m + len(points)], len(points)
    if not Q or any(p[m:].any() for p in points):
        return None
    first = gains[:, 0]
    signs = first @ gains / (first @ first)
    if not torch.allclose(first.outer(signs), gains, rtol=1e-12, atol=0):
        return None
    return Recurrence(moves, torch.stack([p[:m] for p in points[:Q]]), signs, first)


def repeated(step: Callable[[Block], Block], a: Block, times: int) -> Block:
    """`step` so many times, of one that is linear in its block's sequences and keeps their names."""
    names = [name for name in "yzvG" if getattr(a, name)]
    if not names or not times:
        return a
    unit = torch.eye(len(names), dtype=torch.float64)
    after = step(Block(**{"y": {}, **{name: {"": unit[i]} for i, name in enumerate(names)}}))
    moves = torch.linalg.matrix_power(torch.stack([getattr(after, name)[""] for name in names]), times)
    values = [getattr(a, name) for name in names]
    return Block(**{"y": {}, **{n: combination(row, values) for n, row in zip(names, moves, strict=True)}})


def combination(row: Tensor, values: Sequence[Params]) -> Params:
    """Σ_k row[k]·values[k]; the object itself where it is one of them."""
    parts = [(factor, value) for factor, value in zip(row.tolist(), values, strict=True) if factor]
    if not parts:
        return scale(values[0], 0.0)
    (factor, value), *others = parts
    total = value if factor == 1 else scale(value, factor)
    for factor, value in others:
        total = add(total, value, factor)
    return total
