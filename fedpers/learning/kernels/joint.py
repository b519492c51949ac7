"""Steps of the uppermost layers, then a gradient of the whole network where they end, in C: see joint.c."""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedpers.core.compiled import pointer
from fedpers.core.data import Data
from fedpers.core.params import Params
from fedpers.core.pytree import flatten, rebuild
from fedpers.core.vmap import on_stacks
from fedpers.learning.kernels import native
from fedpers.learning.kernels.dispatch import whole_rows
from fedpers.learning.kernels.plan import Plan, Training
from fedpers.learning.kernels.steps import ROOM, WRITTEN

Found = tuple[Params, Params, Tensor]  # what was trained, the gradient of all, what is told of the steps


def steps_then_gradient(
    plan: Plan, given: Training, block: Any, index: Tensor, weight: Tensor, steps: int, powers: int
) -> Found:
    """One client's plain steps with the plan's trained layers, the uppermost, and the gradient after them.

    Args:
        given: one client's tensors.
        block: `Data.block` of that client.
        index, weight: all samples, [1, n], the rows and their weights.
        powers: of the power method, for the curvature of the last layer's loss; 0: nothing is told.

    Returns:
        What was trained, the gradient in all parameters, and what is told, [3]: the loss before and after the
        steps, and λ_max(F'F / n) of the last layer's inputs F with a 1 for its bias; [0] with powers = 0.
    """
    leaves, form = flatten(given)

    def all_clients(index: Tensor, weight: Tensor, *leaves: Tensor) -> list[Tensor]:
        parts, (rows,) = whole_rows(block.parts, index)
        w, g, told = _joint(plan, rebuild(form, leaves), parts, rows, weight, steps, powers)
        return [*w.values(), *g.values(), told]

    values = iter(on_stacks(all_clients, index, weight, *leaves))
    w, g = ({k: next(values) for k in names} for names in (plan.moving, plan.names))
    return w, g, next(values)


def _joint(
    plan: Plan, given: Training, parts: Sequence[Data], index: Tensor, weight: Tensor, steps: int, powers: int
) -> Found:
    """Of C clients: as `steps_then_gradient`, with stacks [C, ...]."""
    none: Params = {}
    w = {k: torch.empty(given.w[k].shape) for k in plan.moving}
    g = {k: torch.empty(given.w[k].shape) for k in plan.names}
    told = torch.empty(len(parts), 3 if powers else 0)
    native.call(
        native.library().fedpers_joint,
        plan,
        ([(WRITTEN, given.w, w), (ROOM, none, g)], parts, index, weight),
        ctypes.c_float(plan.lr),
        ctypes.c_long(steps),
        pointer(told if powers else None),
        powers,
    )
    return w, g, told
