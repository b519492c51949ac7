"""Steps of one sample each by which several models move linearly but for gradients, in C: see recur.c."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedpers.core.params import Params
from fedpers.core.pytree import flatten, rebuild
from fedpers.core.vmap import on_stacks
from fedpers.learning.kernels import native
from fedpers.learning.kernels.coupled import plain_parts
from fedpers.learning.losses import Loss

Rows = Callable[[], Tensor]  # gives the samples [S] of S steps


@dataclass(frozen=True)
class Recurrence:
    """How models s_1..s_m move: s_i' = Σ_k moves[i, k] s_k + gains[i] g.

    g = Σ_q signs[q] ∇f(Σ_k points[q, k] s_k), f being a sample's loss; all are float64.
    """

    moves: Tensor  # [m, m]
    points: Tensor  # [Q, m]
    signs: Tensor  # [Q]
    gains: Tensor  # [m]

    @cached_property
    def moving(self) -> list[int]:
        """The models that change."""
        still = torch.eye(len(self.moves), dtype=self.moves.dtype)
        changed = (self.moves != still).any(1) | (self.gains != 0)
        return [i for i, c in enumerate(changed.tolist()) if c]

    @cached_property
    def numbers(self) -> Tensor:
        """What the kernel is told."""
        return torch.cat([t.reshape(-1) for t in (self.moves, self.points, self.signs, self.gains)])


def steps_recurrent(
    loss: Loss, how: Recurrence, models: Sequence[Params], kept: Sequence[int], block: Any, draw: Rows
) -> list[Params] | None:
    """The models `kept` after S steps, of one client; None if there is no kernel for it.

    Args:
        models: of the same names and shapes, those of the recurrence.
        kept: which are wanted; each must be one that moves.
        block: `Data.block` of the client.
        draw: gives the samples [S] of the steps; it is not asked if there is no kernel.
    """
    found = None if block is None or not models else plain_parts(loss, models[0], block.parts)
    if found is None or not all(_alike(models[0], w) for w in models):
        return None
    plan, leaves, form = found[0], *flatten(list(models))

    def all_clients(rows: Tensor, *leaves: Tensor) -> list[Tensor]:
        moved = _call(plan, how, rebuild(form, leaves), kept, block.parts, rows)
        return [w[k] for w in moved for k in plan.moving]

    values = iter(on_stacks(all_clients, draw(), *leaves))
    return [{k: next(values) for k in plan.moving} for _ in kept]


def _alike(a: Params, b: Params) -> bool:
    return a.keys() == b.keys() and all(a[k].dtype == b[k].dtype and a[k].shape == b[k].shape for k in a)


def _call(
    plan: Any, how: Recurrence, models: Sequence[Params], kept: Sequence[int], parts: Any, rows: Tensor
) -> list[Params]:
    fresh: list[Params] = [{} for _ in models]
    for i in kept:
        fresh[i] = {k: torch.empty(t.shape) for k, t in models[i].items()}
    index, numbers = rows.unsqueeze(-1), how.numbers
    native.call(
        native.library().fedpers_recur,
        plan,
        (models, fresh, parts, index, torch.ones(1).expand(index.shape)),
        *map(ctypes.c_long, (len(models), len(how.points))),
        native._pointer(numbers),
        ctypes.c_long(0),
    )
    return [fresh[i] for i in kept]
