"""Plain steps with gradients that are taken elsewhere than at the model they change, in C: see couple.c."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedpers.core.data import Data
from fedpers.core.params import Params
from fedpers.core.pytree import flatten, rebuild
from fedpers.core.vmap import on_stacks
from fedpers.learning.kernels import native
from fedpers.learning.kernels.dispatch import ON_DATA, kernels_allowed, parts_of
from fedpers.learning.kernels.plan import Ahead, Mixed, Plan, Training
from fedpers.learning.losses import Loss


def steps_ahead(
    loss: Loss, how: Ahead, w: Params, pairs: Data, draw: Callable[[], tuple[Tensor, Tensor]]
) -> Params | None:
    """w after S steps with gradients ahead of it, of one client; None if there is no kernel for it.

    Args:
        pairs: x [n, 2, ...], y [n, 2]: a step's first samples, and those that it looks ahead with.
        draw: gives minibatches of pairs, index and weight [S, B]; it is not asked if there is no kernel.
    """
    x, y = pairs.x.flatten(0, 1), pairs.y.flatten(0, 1)
    found = _plain_parts(loss, w, [Data(x, y, pairs.mask)])
    if found is None:
        return None
    plan, start = found
    leaves, form = flatten(start)

    def all_clients(
        index: Tensor, weight: Tensor, x: Tensor, y: Tensor, mask: Tensor, *leaves: Tensor
    ) -> list[Tensor]:
        parts = [Data(*row) for row in zip(x.contiguous(), y.contiguous(), mask, strict=True)]
        moved, _ = couple(plan, rebuild(form, leaves), how, parts, 2 * index, weight)
        return [moved[k] for k in plan.moving]

    moved = on_stacks(all_clients, *draw(), x, y, pairs.mask, *leaves)
    return dict(zip(plan.moving, moved, strict=True))


def steps_mixed(
    loss: Loss, how: Mixed, w: Params, v: Params, block: Any, draw: Callable[[], tuple[Tensor, Tensor]]
) -> tuple[Params, Params] | None:
    """Both models after S steps with gradients at mixtures of them; None if there is no kernel for it.

    Args:
        block: `Data.block` of the client.
        draw: as in `steps_ahead`.
    """
    found = None if block is None or w.keys() != v.keys() else _plain_parts(loss, w, block.parts)
    if found is None or not all(v[k].dtype == w[k].dtype and v[k].shape == w[k].shape for k in w):
        return None
    plan, start = found
    leaves, form = flatten(replace(start, cbar=v))

    def all_clients(index: Tensor, weight: Tensor, *leaves: Tensor) -> list[Tensor]:
        both = couple(plan, rebuild(form, leaves), how, block.parts, index, weight)
        return [kind[k] for kind in both for k in plan.moving]

    values = iter(on_stacks(all_clients, *draw(), *leaves))
    first, second = ({k: next(values) for k in plan.moving} for _ in range(2))
    return first, second


def _plain_parts(loss: Loss, w: Params, parts: Sequence[Data]) -> tuple[Plan, Training] | None:
    """The parts of a model's own loss, of whose parameters all are trained; None if a kernel lacks them."""
    found = parts_of(loss, ON_DATA, w, next(iter(w.values()))) if kernels_allowed() else None
    if found is None or found[0].lam or set(found[0].names) != w.keys():
        return None
    return found if native.fits(*found, parts) else None


def couple(
    plan: Plan, given: Training, how: Ahead | Mixed, parts: Sequence[Data], index: Tensor, weight: Tensor
) -> tuple[Params, Params]:
    """Plain steps of C clients with gradients taken elsewhere; `fits` must hold. Nothing is overwritten.

    Args:
        given: stacks [C, ...]; `w`, and for mixtures the other model as `cbar`.
        how: where gradients are taken. Ahead: samples are pairs, 2i and 2i + 1.
        parts, index, weight: as in `train`; Ahead's `index` has even numbers.

    Returns:
        The stacks of both models, the second {} if there is none.
    """
    kinds, none = (
        (given.w, given.cbar, given.w, given.w),
        dict[str, Tensor](),
    )  # the last two: room for points
    fresh = [{k: torch.empty(t.shape) for k, t in kind.items()} for kind in kinds[:2]]
    numbers = [float(v) for v in how.numbers]
    native.call(
        native.library().fedpers_couple,
        plan,
        (kinds, (*fresh, none, none), parts, index, weight),
        how.kind,
        (ctypes.c_float * len(numbers))(*numbers),
        ctypes.c_long(len(numbers) // 4),
    )
    return fresh[0], fresh[1]
