"""Steps of a program by torch, for one client in place on a copy of its parameters."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from fedpers.core.data import Data
from fedpers.core.params import Params
from fedpers.core.witness import TORCH, took
from fedpers.learning.gradients import in_stack
from fedpers.learning.losses import Loss, taken_apart
from fedpers.learning.optimizers import MOMENTS, LocalConfig, OptimizerState, program
from fedpers.learning.pieces import layout, pieces, slopes
from fedpers.learning.step import Now, pulled


def alone() -> bool:
    """One client, and nobody differentiates through its training: it may write in place."""
    return not in_stack() and not torch.is_grad_enabled()


def descend(
    loss: Loss,
    params: Params,
    opt: OptimizerState,
    batches: Iterable[tuple[Data, float]],
    cfg: LocalConfig,
    lr: float,
    gradient: Callable[[Params, Data], Params] | None = None,
) -> tuple[Params, OptimizerState]:
    """The steps of one client, in place on a copy: the same numbers, less time.

    A proximal term's gradient λ(ūw - c̄) is added to the loss's: autograd takes three times the passes.

    Args:
        gradient: of the loss without its proximal term, where it is written out; None: by autograd.
    """
    took(TORCH)
    near = taken_apart(loss)[0]
    pulls = near.lam != 0 and near.cbar.keys() == params.keys()  # else autograd says what is wrong
    steps, loss = pulled(program(cfg), near.lam * pulls), near.loss if pulls else loss
    own = {"ū": float(near.ubar)} if pulls else {}  # read once: reading a number off a GPU waits for it
    w = {k: layout(t).requires_grad_(gradient is None) for k, t in params.items()}
    v = {"w": w} | {k: {n: layout(getattr(opt, k)[n]) for n in params} for k in steps.keeps}
    if pulls:
        v["c"] = {k: layout(near.cbar[k]) for k in params}
    step, slope = opt.step.clone(), gradient or partial(_slopes, loss)
    for batch, step_scale in batches:
        now = Now(partial(accumulated, slope, cfg.micro_batch, batch), lr * step_scale, step.add_(1), own)
        for instruction in steps.instructions:
            instruction.in_place(v, now)
    done = {k: t.detach().contiguous() for k, t in w.items()}
    return done, OptimizerState(step, *(v.get(k, {}) for k in MOMENTS)) if steps.keeps else opt


def _slopes(loss: Loss, w: Params, batch: Data) -> Params:
    """The gradient at w, whose tensors require gradients if they are what is trained."""
    trained = all(t.requires_grad for t in w.values())
    leaves = w if trained else {k: layout(t).requires_grad_() for k, t in w.items()}
    return dict(zip(w, slopes(loss, leaves, pieces(loss, batch)), strict=True))


def accumulated(gradient: Any, size: int, batch: Data, w: Params) -> Params:
    """The gradient of a minibatch's mean loss, of `size` samples at a time; 0: of all at once."""
    if not size or len(batch) <= size:
        return gradient(w, batch)  # type: ignore[no-any-return]
    total: Params = {}
    for parts in zip(*(t.split(size) for t in (batch.x, batch.y, batch.mask)), strict=True):
        part = Data(*parts)
        some, share = part.num > 0, part.num / batch.num  # padding has no gradient
        g = {k: torch.where(some, share * t, 0.0) for k, t in gradient(w, part).items()}
        total = {k: total[k] + t for k, t in g.items()} if total else g
    return total
