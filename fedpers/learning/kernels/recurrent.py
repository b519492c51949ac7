"""Steps by which several models move linearly but for gradients, in C: see recur.c."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from fedpers.core.compiled import longs, pointer, pointers
from fedpers.core.data import Data
from fedpers.core.params import Params
from fedpers.core.pytree import flatten, rebuild
from fedpers.core.vmap import on_stacks
from fedpers.learning.kernels import native
from fedpers.learning.kernels.plan import Plan, Training
from fedpers.learning.kernels.programs import Draw, plain_parts
from fedpers.learning.kernels.steps import GIVEN
from fedpers.learning.losses import Loss
from fedpers.learning.step import Grad, Mix, Program


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

    @cached_property
    def program(self) -> Program:
        """One step: all models from where they were before it."""
        m, points, signs = range(len(self.moves)), self.points.tolist(), self.signs.tolist()
        names = [f"s{k}" for k in m]
        mixed = [Mix(f"x{q}", _terms(point, names)) for q, point in enumerate(points)]
        slopes = [Grad(f"g{q}", f"x{q}") for q in range(len(points))]
        moves, gains = self.moves.tolist(), self.gains.tolist()
        rows = {i: [*moves[i], *[gains[i] * s for s in signs]] for i in self.moving}
        names += [g.dst for g in slopes]
        moved = [Mix(f"t{i}", _terms(row, names)) for i, row in rows.items()]
        return Program((*mixed, *slopes, *moved, *[Mix(f"s{i}", ((1.0, f"t{i}"),)) for i in self.moving]))

    @cached_property
    def learning(self) -> list[int]:
        """The models that gradients reach, at once or by others."""
        learn = self.gains != 0
        for _ in self.moves:
            learn = learn | (self.moves[:, learn] != 0).any(1)
        return learn.nonzero()[:, 0].tolist()

    @cached_property
    def order(self) -> list[int]:
        """All models, those first that learn."""
        return [*self.learning, *[i for i in range(len(self.moves)) if i not in self.learning]]

    def numbers(self, ends: Tensor) -> Tensor:
        """What the kernel is told, where the mixtures `ends` [J, m] are wanted: see motion.h."""
        o = self.order
        turned = self.moves[o][:, o], self.points[:, o], self.signs, self.gains[o], ends[:, o]
        return torch.cat([t.flatten() for t in turned])


def _terms(row: Sequence[float], names: Sequence[str]) -> tuple[tuple[float, str], ...]:
    """A mixture; of nothing it is 0 times the first."""
    return tuple([(c, n) for c, n in zip(row, names, strict=True) if c]) or ((0.0, names[0]),)


def steps_recurrent(
    loss: Loss, how: Recurrence, models: Sequence[Params], ends: Tensor, block: Any, draw: Draw
) -> list[Params] | None:
    """Mixtures Σ_k ends[j, k] s_k of the models after S steps, of one client; None without a kernel.

    Args:
        models: of the same names and shapes, those of the recurrence.
        ends: [J, m] float64.
        block: `Data.block` of the client.
        draw: as in `run_program`.
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
    if index.shape[2] != 1:
        return _by_program(plan, how, models, ends, parts, index, weight)
    wanted = [{k: torch.empty(len(parts), *t.shape[1:]) for k, t in models[0].items()} for _ in ends]
    none, numbers = dict[str, Tensor](), how.numbers(ends)
    sizes = len(how.order), len(how.learning), len(how.points), len(ends)
    pairs = zip_longest([models[i] for i in how.order], wanted, fillvalue=none)
    native.call(
        native.library().fedpers_recur,
        plan,
        ([(GIVEN, came, made) for came, made in pairs], parts, index, weight),
        longs(sizes),
        pointer(numbers),
        _places(plan, table),
        longs([len(p.x) for p in parts]),
    )
    return wanted


def _by_program(
    plan: Plan,
    how: Recurrence,
    models: Sequence[Params],
    ends: Tensor,
    parts: Sequence[Data],
    index: Tensor,
    weight: Tensor,
) -> list[Params]:
    """Steps of several samples, whose gradients take longer than what moves the models."""
    names = [f"s{k}" for k in range(len(models))]
    own = replace(plan, program=how.program, wanted=tuple([names[i] for i in how.moving]))
    given = dict(zip(names, models, strict=True))
    now = given | native.train(own, Training(given, {}), parts, index, weight).vectors
    rows = [[(c, now[n]) for c, n in zip(row, names, strict=True) if c] for row in ends.tolist()]
    none = {k: torch.zeros_like(w) for k, w in models[0].items()}
    return [{k: sum([c * w[k] for c, w in row], none[k]) for k in none} for row in rows]


def _places(plan: Plan, table: Params | None) -> Any:
    """Where each client's rows of a table are, layer by layer; None without one."""
    if not table:
        return None
    stacks = [table.get(f"{layer}.{factor}") for layer in plan.layers for factor in ("d", "h")]
    C = len(next(iter(table.values())))
    return pointers([None if t is None else t[c] for c in range(C) for t in stacks])
