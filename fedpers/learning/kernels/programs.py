"""Steps of a method's own program, by the C runner."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from fedpers.core.data import Data
from fedpers.core.params import Params
from fedpers.core.pytree import changed
from fedpers.core.witness import stepped_by
from fedpers.learning.kernels import native
from fedpers.learning.kernels.dispatch import ON_DATA, kernels_allowed, minimise_dense, parts_of
from fedpers.learning.kernels.plan import Plan, Training
from fedpers.learning.kernels.steps import known
from fedpers.learning.losses import Loss
from fedpers.learning.step import Program

Draw = Callable[[], tuple[Tensor, Tensor]]  # gives minibatches, index and weight [S, B]


def run_program(
    loss: Loss,
    steps: Program,
    vectors: dict[str, Params],
    wanted: tuple[str, ...],
    block: Any,
    draw: Draw,
    *,
    lr: float = 0.0,
    other: Tensor | None = None,
) -> list[Params] | None:
    """The vectors `wanted` of one client after S steps; None if the runner lacks something.

    Args:
        loss: a model's own.
        vectors: by their names in the program, of the names and shapes of all the model's parameters.
        block: `Data.block` of the client.
        draw: it is not asked if there is nobody to run the program.
        other: [n] the row of another sample that pairs with each.
    """
    first, *others = vectors.values()
    found = None if block is None or not known(steps) else plain_parts(loss, first, block.parts)
    if found is None or not all(_alike(first, v) for v in others):
        return None
    plan, start = found
    if plan.convs and any(getattr(i, "beside", "") for i in steps.instructions):
        return None  # images go through one model's convolutions at a time
    stepped_by(steps)
    plan = replace(plan, program=steps, wanted=wanted, lr=lr)
    start = changed(start, vectors=vectors)
    index, weight = draw()
    pairs = None if other is None else other[index]
    done = minimise_dense(plan, start, block, index, weight, pairs)
    return [done.vectors[k] for k in wanted]


def plain_parts(loss: Loss, w: Params, parts: Sequence[Data]) -> tuple[Plan, Training] | None:
    """The parts of a model's own loss, of whose parameters all are trained; None if a kernel lacks them."""
    found = parts_of(loss, ON_DATA, w, next(iter(w.values()))) if kernels_allowed() else None
    if found is None or found[0].lam or set(found[0].names) != w.keys():
        return None
    return found if native.fits(*found, parts) else None


def _alike(a: Params, b: Params) -> bool:
    return a.keys() == b.keys() and all(a[k].dtype == b[k].dtype and a[k].shape == b[k].shape for k in a)
