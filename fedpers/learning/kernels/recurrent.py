"""Steps by which several models move linearly but for gradients, in C: see recur.c and sweep.c."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedpers.core.compiled import longs, pointer, pointers
from fedpers.core.data import Data
from fedpers.core.params import Params
from fedpers.core.pytree import flatten, rebuild
from fedpers.core.vmap import on_stacks
from fedpers.learning.kernels import native
from fedpers.learning.kernels.coupled import Draw, plain_parts
from fedpers.learning.kernels.few_models import Few, few_models
from fedpers.learning.kernels.plan import Plan
from fedpers.learning.losses import Loss


@dataclass(frozen=True)
class Recurrence:
    """How models s_1..s_m move: s_i' = Σ_k moves[i, k] s_k + gains[i] g.

    g = Σ_q signs[q] ∇f(Σ_k points[q, k] s_k), f being the loss of a step's samples; all are float64.
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

    def of_few(self, ends: Tensor) -> Few:
        """What the kernel is told, where the mixtures `ends` [J, m] are wanted; found once for each."""
        key = ends.numpy().tobytes()
        if key not in self._found:
            self._found[key] = few_models(self.moves, self.points, self.signs, self.gains, ends)
        return self._found[key]

    @cached_property
    def _found(self) -> dict[bytes, Few]:
        return {}


def steps_recurrent(
    loss: Loss, how: Recurrence, models: Sequence[Params], ends: Tensor, block: Any, draw: Draw
) -> list[Params] | None:
    """Mixtures Σ_k ends[j, k] s_k of the models after S steps, of one client; None without a kernel.

    Args:
        models: of the same names and shapes, those of the recurrence.
        ends: [J, m] float64.
        block: `Data.block` of the client.
        draw: as in `steps_ahead`.
    """
    found = steps_with_table(loss, how, models, ends, block, draw, {})
    return found and found[0]


def steps_with_table(
    loss: Loss, how: Recurrence, models: Sequence[Params], ends: Tensor, block: Any, draw: Draw, table: Params
) -> tuple[list[Params], Params] | None:
    """(`steps_recurrent`, table after the steps) of steps of one sample each.

    Args:
        table: what `Factors` keep of the samples' last gradients. They stand for the second point of `how`,
            and the first one's take their place.
    """
    found = None if block is None or not models else plain_parts(loss, models[0], block.parts)
    if found is None or found[0].convs or not all(_alike(models[0], w) for w in models):
        return None
    plan, leaves, form = found[0], *flatten((list(models), table))

    def all_clients(index: Tensor, weight: Tensor, *leaves: Tensor) -> list[Tensor]:
        models, table = rebuild(form, leaves)
        kept = {k: v.clone(memory_format=torch.contiguous_format) for k, v in table.items()}
        wanted = _call(plan, how, models, ends, block.parts, index, weight, kept)
        return [*[w[k] for w in wanted for k in plan.moving], *kept.values()]

    values = iter(on_stacks(all_clients, *draw(), *leaves))
    return [{k: next(values) for k in plan.moving} for _ in ends], dict(zip(table, values, strict=True))


def _alike(a: Params, b: Params) -> bool:
    return a.keys() == b.keys() and all(a[k].dtype == b[k].dtype and a[k].shape == b[k].shape for k in a)


def _call(
    plan: Plan,
    how: Recurrence,
    models: Sequence[Params],
    ends: Tensor,
    parts: Sequence[Data],
    index: Tensor,
    weight: Tensor,
    table: Params | None = None,  # stacks, which are written
) -> list[Params]:
    wanted = [{k: torch.empty(len(parts), *t.shape[1:]) for k, t in models[0].items()} for _ in ends]
    few = how.of_few(ends)
    one = index.shape[2] == 1
    own = [_places(plan, table), longs([len(p.x) for p in parts])] if one else []
    native.call(
        native.library().fedpers_recur if one else native.library().fedpers_sweep,
        plan,
        ([models[i] for i in few.order], wanted, parts, index, weight),
        longs(few.sizes),
        pointer(few.numbers),
        *own,
    )
    return wanted


def _places(plan: Plan, table: Params | None) -> Any:
    """Where each client's rows of a table are, layer by layer; None without one."""
    if not table:
        return None
    stacks = [table.get(f"{layer}.{factor}") for layer in plan.layers for factor in ("d", "h")]
    C = len(next(iter(table.values())))
    return pointers([None if t is None else t[c] for c in range(C) for t in stacks])
