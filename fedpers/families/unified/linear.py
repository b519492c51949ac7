"""Iterations that are linear but for gradients: what they do to the sequences, as matrices.

The matrices are found by running the method's own iteration once, on unit vectors in place of models, and so
is what it ends with where that is linear.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedpers.core.data import Data
from fedpers.core.params import Params, add, scale
from fedpers.families.unified.messages import Block, BlockGradients
from fedpers.families.unified.objective import Objective
from fedpers.learning.kernels.recurrent import Recurrence

Step = Callable[[Any, Block, Block], tuple[Block, Block]]  # (f, w, β) to (w, β)
Finish = Callable[[Any, Block, Block], tuple[BlockGradients, Block]]  # (f, w, β) to the reply, and β
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

    def unit(self, places: Sequence[int]) -> Tensor:
        """The shares [J, m] of these sequences in themselves."""
        return torch.eye(len(self.values), dtype=torch.float64)[list(places)]

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
    m, points = len(sequences.values), list[Tensor]()
    unit = torch.eye(m + MOST, dtype=torch.float64)

    def slope(at: Params, data: Data) -> Params:
        points.append(at[""])
        return add({"": unit[m + len(points) - 1]}, at, f.config.l2)

    try:
        after = step(_probe(f, slope), *sequences.blocks([{"": u} for u in unit[:m]]))
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


def _probe(f: Objective, slope: Callable[[Params, Data], Params]) -> Any:
    """f with other gradients of the plain loss."""
    probe: Any = copy.copy(f)
    probe.loss_gradient = slope
    return probe


@dataclass(frozen=True)
class Ending:
    """A reply and the private block with it, as mixtures of the sequences before."""

    rows: Tensor  # [J, m] float64
    names: tuple[str, ...]  # which field of the reply or of the block each row is
    stays: dict[str, int]  # fields of the block that are a sequence which does not move

    def read(
        self, sequences: Sequences, values: Sequence[Params], before: Block
    ) -> tuple[BlockGradients, Block]:
        """Both, from the mixtures of all rows; the block itself if nothing in it changes."""
        still = {name: sequences.values[i] for name, i in self.stays.items()}
        found = {"y": {}, **still, **dict(zip(self.names, values, strict=True))}
        reply = BlockGradients(found.pop("g", {}), found.pop("g_v", {}))
        return reply, before if still.keys() == found.keys() else Block(**found)


class _NotLinear(Exception):
    pass


def ending_of(finish: Finish, f: Objective, sequences: Sequences, moving: Sequence[int]) -> Ending | None:
    """What comes after iterations that move these sequences; None if it takes a gradient of a model."""

    def slope(at: Params, data: Data) -> Params:
        raise _NotLinear

    unit = sequences.unit(range(len(sequences.values)))
    try:
        reply, block = finish(_probe(f, slope), *sequences.blocks([{"": u} for u in unit]))
    except _NotLinear:
        return None
    given = {k: getattr(part, k) for part, names in ((reply, ("g", "g_v")), (block, "yzvG")) for k in names}
    rows = {k: v[""] for k, v in given.items() if v}
    kept = [i for i in range(len(unit)) if i not in moving]
    stays = {k: i for k, row in rows.items() for i in kept if k in "yzvG" and row.equal(unit[i])}
    names = tuple(k for k in rows if k not in stays)
    return Ending(torch.stack([rows[k] for k in names]), names, stays) if names else None


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
