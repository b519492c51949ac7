"""Plain steps with gradients that are taken elsewhere than at the model they change, in C: see couple.c."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedpers.core.compiled import longs, pointer
from fedpers.core.data import Data
from fedpers.core.params import Params
from fedpers.core.pytree import flatten, rebuild
from fedpers.core.vmap import on_stacks
from fedpers.learning.kernels import native
from fedpers.learning.kernels.dispatch import ON_DATA, kernels_allowed, parts_of
from fedpers.learning.kernels.plan import Ahead, Mixed, Plan, Summed, Training
from fedpers.learning.losses import Loss

Draw = Callable[[], tuple[Tensor, Tensor]]  # gives minibatches, index and weight [S, B]


def steps_ahead(loss: Loss, how: Ahead, w: Params, block: Any, other: Tensor, draw: Draw) -> Params | None:
    """w after S steps with gradients ahead of it, of one client; None if there is no kernel for it.

    Args:
        block: `Data.block` of the client.
        other: [n] the row that a sample's step looks ahead with.
        draw: gives minibatches, index and weight [S, B]; it is not asked if there is no kernel.
    """
    found = None if block is None else plain_parts(loss, w, block.parts)
    if found is None:
        return None
    plan, start = found
    leaves, form = flatten(start)

    def all_clients(index: Tensor, weight: Tensor, other: Tensor, *leaves: Tensor) -> list[Tensor]:
        moved, _ = couple(plan, rebuild(form, leaves), how, block.parts, index, weight, other)
        return [moved[k] for k in plan.moving]

    index, weight = draw()
    moved = on_stacks(all_clients, index, weight, other[index], *leaves)
    return dict(zip(plan.moving, moved, strict=True))


def steps_mixed(
    loss: Loss, how: Mixed | Summed, w: Params, v: Params, block: Any, draw: Draw
) -> tuple[Params, Params] | None:
    """Both models after S steps with gradients at mixtures or at the sum of them; None without a kernel.

    Args:
        block: `Data.block` of the client.
        draw: as in `steps_ahead`.
    """
    found = None if block is None or w.keys() != v.keys() else plain_parts(loss, w, block.parts)
    if found is None or not all(v[k].dtype == w[k].dtype and v[k].shape == w[k].shape for k in w):
        return None
    plan, start = found
    if plan.convs and isinstance(how, Summed):
        return None
    leaves, form = flatten(replace(start, cbar=v))

    def all_clients(index: Tensor, weight: Tensor, *leaves: Tensor) -> list[Tensor]:
        both = couple(plan, rebuild(form, leaves), how, block.parts, index, weight)
        return [kind[k] for kind in both for k in plan.moving]

    values = iter(on_stacks(all_clients, *draw(), *leaves))
    first, second = ({k: next(values) for k in plan.moving} for _ in range(2))
    return first, second


def plain_parts(loss: Loss, w: Params, parts: Sequence[Data]) -> tuple[Plan, Training] | None:
    """The parts of a model's own loss, of whose parameters all are trained; None if a kernel lacks them."""
    found = parts_of(loss, ON_DATA, w, next(iter(w.values()))) if kernels_allowed() else None
    if found is None or found[0].lam or set(found[0].names) != w.keys():
        return None
    return found if native.fits(*found, parts) else None


def couple(
    plan: Plan,
    given: Training,
    how: Ahead | Mixed | Summed,
    parts: Sequence[Data],
    index: Tensor,
    weight: Tensor,
    other: Tensor | None = None,
) -> tuple[Params, Params]:
    """Plain steps of C clients with gradients taken elsewhere; `fits` must hold. Nothing is overwritten.

    Args:
        given: stacks [C, ...]; `w`, and for mixtures the other model as `cbar`.
        how: where gradients are taken.
        parts, index, weight: as in `train`.
        other: Ahead's rows [C, S, B] of the batches to look ahead with.

    Returns:
        The stacks of both models, the second {} if there is none.
    """
    none: Params = {}
    upper = {k: given.w[k] for k in plan.places[2:] if k in given.w}
    mixed = given.w if plan.convs else upper  # a dense first layer's outputs are mixed instead
    room = {Ahead: (given.w, none), Mixed: (mixed, mixed), Summed: (none, none)}[type(how)]  # for points
    kinds = (given.w, given.cbar, *room)
    fresh = [{k: torch.empty(t.shape) for k, t in kind.items()} for kind in kinds[:2]]
    numbers = [float(v) for v in how.numbers]
    other = index if other is None else other.contiguous()
    native.call(
        native.library().fedpers_couple,
        plan,
        (kinds, (*fresh, none, none), parts, index, weight),
        how.kind,
        (ctypes.c_float * len(numbers))(*numbers),
        ctypes.c_long(len(numbers) // 4),
        pointer(other),
        longs(other.stride()),
    )
    return fresh[0], fresh[1]
