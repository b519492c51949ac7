"""Gradients and the one local training loop.

A method says what is trainable and what the loss is; it never calls backward. `grad` is autograd for
one client and torch.func for a stack of clients, so that one definition is fast both ways.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from fedpers.core.data import Data
from fedpers.core.params import Params, alike
from fedpers.core.pytree import changed
from fedpers.core.rng import Stream, beside
from fedpers.core.vmap import numbers, readable
from fedpers.learning.gradients import grad, in_stack, knows_training
from fedpers.learning.kernels.coupled import steps_ahead
from fedpers.learning.kernels.dispatch import kernels_allowed, minimise_dense, minimise_dense_each, plan_of
from fedpers.learning.kernels.graphs import minimise_recorded
from fedpers.learning.kernels.joint import Found, steps_then_gradient
from fedpers.learning.kernels.plan import ADAM, PLAIN, Ahead, rule_of, understood
from fedpers.learning.losses import Loss, taken_apart
from fedpers.learning.optimizers import (
    LocalConfig,
    OptimizerState,
    adam_in_place,
    init_optimizer,
    sgd_in_place,
    sgd_step,
)
from fedpers.learning.pieces import layout, pieces, slopes
from fedpers.learning.training_round import memory_of


def minimise(loss: Loss, params: Params, data: Data, rng: Stream, cfg: LocalConfig, lr: Any = None) -> Params:
    """Local training from `params`; `lr` overrides the configured one.

    The optimiser is a fresh one, or with `keep_momentum` that of the same training in the last round.
    """
    memory = memory_of(cfg)
    opt = memory.next(params, cfg) if memory else init_optimizer(params, cfg)
    keeps = bool(memory) or not opt.m  # no moments, nothing to leave out
    params, opt = minimise_from(loss, params, opt, data, rng, cfg, lr, keeps=keeps)
    if memory:
        memory.after.append(opt)
    return params


def minimise_each(
    loss: Loss, models: Sequence[Params], data: Data, rngs: Sequence[Stream], cfg: LocalConfig
) -> list[Params]:
    """`minimise` from each of some models, by a stream of its own: a kernel is prepared once for all."""
    if not models or not models[0]:  # nothing to train
        return list(models)
    opt = init_optimizer(models[0], cfg)
    own = knows_training(loss) or memory_of(cfg) or not alike(models)
    dense = None if own else dense_plan(loss, models[0], opt, data, cfg, cfg.lr)
    if dense is None:
        return [minimise(loss, phi, data, rng, cfg) for phi, rng in zip(models, rngs, strict=True)]
    plan, start = replace(dense[0], keeps=False), dense[1]
    starts = [changed(start, w=start.w | phi) for phi in models]
    batches = [schedule_of(data, rng, cfg) for rng in rngs]
    return [done.w for done in minimise_dense_each(plan, starts, data.block, batches)]


def minimise_from(
    loss: Loss,
    params: Params,
    opt: OptimizerState,
    data: Data,
    rng: Stream,
    cfg: LocalConfig,
    lr: Any = None,
    *,
    keeps: bool = True,
) -> tuple[Params, OptimizerState]:
    """Local training that goes on with the optimiser's state; returns both.

    Without `keeps` nobody may use the state that is returned, and moments are not copied.
    """
    if not params:  # nothing to train: a model may be all head, or all body
        return params, opt
    lr = cfg.lr if lr is None else lr
    if knows_training(loss) and (found := loss.minimise(params, opt, data, rng, cfg, lr)) is not None:
        return found
    if (found := minimise_by_kernel(loss, params, opt, data, rng, cfg, lr, keeps=keeps)) is not None:
        return found
    if _alone() and isinstance(lr, float) and understood(cfg):
        return _descend(loss, params, opt, minibatches(data, rng, cfg), cfg, lr)

    def step(gradient: Any, w: Params, opt: OptimizerState, batch: Data) -> Any:
        return where_any(rng, batch.mask, sgd_step(w, gradient(w, batch), opt, cfg, lr), (w, opt))

    draw, how = lambda: schedule_of(data, rng, cfg), (cfg, lr, rng.ragged)
    if isinstance(lr, float) and (found := minimise_recorded(loss, params, opt, data, how, draw, step)):
        return found
    gradient = grad(loss)
    for batch in minibatches(data, rng, cfg):
        params, opt = step(gradient, params, opt, batch)
    return params, opt


def minimise_by_kernel(
    loss: Loss,
    params: Params,
    opt: OptimizerState,
    data: Data,
    rng: Stream,
    cfg: LocalConfig,
    lr: Any,
    each: tuple[Tensor, ...] = (),
    keeps: bool = True,
) -> tuple[Params, OptimizerState] | None:
    """`minimise_from` in one call of a kernel; None if there is none for it.

    Args:
        each: ([n],) a factor for each sample's loss; () for none.
    """
    dense = dense_plan(loss, params, opt, data, cfg, lr)
    if dense is None:
        return None
    plan, start = dense
    if not keeps or each:
        plan, start = replace(plan, keeps=keeps), changed(start, each=each)
    done = minimise_dense(plan, start, data.block, *schedule_of(data, rng, cfg))
    return done.w, OptimizerState(done.step[0], done.m, done.v) if opt.m else opt


def minimise_paced(
    loss: Loss,
    params: Params,
    pace: Params,
    opt: OptimizerState,
    data: Data,
    rng: Stream,
    cfg: LocalConfig,
    lr: Any,
) -> tuple[Params, Params, Tensor] | None:
    """SGD with the gradients of some layers times a factor; None if there is no kernel for it.

    Args:
        pace: factors by layer (the prefix of its parameters' names), scalars; weight decay has none.

    Returns:
        The parameters, their momentum ({} without) and the weights [S, B] of the minibatches.
    """
    dense = dense_plan(loss, params, opt, data, cfg, lr)
    if dense is None or dense[0].rule == ADAM:
        return None
    (plan, start), (index, weight) = dense, schedule_of(data, rng, cfg)
    done = minimise_dense(plan, changed(start, pace=pace), data.block, index, weight)
    return done.w, done.m, weight


def minimise_then_grad(
    loss: Loss, params: Params, data: Data, rng: Stream, cfg: LocalConfig, powers: int
) -> Found | None:
    """Plain steps on all samples at once, then the gradient in all parameters, also frozen ones.

    What lies below `params` is gone through once. None if there is no kernel for it.

    Args:
        loss: a model's own, with `Frozen` lower layers.
        params: of the uppermost layers.
        cfg: rate and number of steps.
        powers: as in `steps_then_gradient`, which says what is returned.
    """
    if not params:
        return None
    dense = dense_plan(loss, params, init_optimizer(params, cfg), data, cfg, cfg.lr)
    if dense is None:
        return None
    (plan, start), (index, weight) = dense, schedule_of(data, rng, replace(cfg, steps=1))
    return steps_then_gradient(plan, start, data.block, index, weight, cfg.steps, powers)


def minimise_weighed(
    loss: Loss,
    each: Tensor,
    params: Params,
    opt: OptimizerState,
    data: Data,
    rng: Stream,
    cfg: LocalConfig,
    lr: Any,
) -> tuple[Params, OptimizerState] | None:
    """`minimise_from` with a factor `each` [n] for each sample's loss; None if there is no kernel for it.

    A batch of B samples has the loss 1/B Σ_i each_i l_i: factors do not count in its size.
    """
    if each.dtype != torch.float32:
        return None
    return minimise_by_kernel(loss, params, opt, data, rng, cfg, lr, (each,))


def minimise_ahead(
    loss: Loss,
    alpha: float,
    params: Params,
    opt: OptimizerState,
    data: Data,
    other: Tensor,
    rng: Stream,
    cfg: LocalConfig,
    lr: Any,
) -> tuple[Params, OptimizerState] | None:
    """Steps w -= lr ∇f(w - α ∇f(w; D); D') of plain SGD; None if there is no kernel for it.

    Args:
        loss: f.
        other: [n] the row in D for each in D'.
    """
    plain = understood(cfg) and rule_of(cfg, 0.0) == PLAIN and isinstance(lr, float)
    if not plain or not kernels_allowed():
        return None
    how, draw = Ahead(alpha, lr), lambda: schedule_of(data, rng, cfg)
    moved = steps_ahead(loss, how, params, data.block, other, draw)
    return None if moved is None else (moved, opt)


def _alone() -> bool:
    """One client, and nobody differentiates through its training: it may write in place."""
    return not in_stack() and not torch.is_grad_enabled()


def dense_plan(loss: Loss, params: Params, opt: OptimizerState, data: Data, cfg: LocalConfig, lr: Any) -> Any:
    """What `minimise_dense` needs, if the loss is one of a dense model; else None."""
    in_stack = type(data) is Data and not all(map(readable, (data.x, data.y, data.mask)))
    if not kernels_allowed() or in_stack:
        return None
    return plan_of(loss, params, opt, data, cfg, lr)


def _descend(
    loss: Loss, params: Params, opt: OptimizerState, batches: Iterable[Data], cfg: LocalConfig, lr: float
) -> tuple[Params, OptimizerState]:
    """`sgd_step` after `sgd_step`, in place on a copy: the same numbers, less time.

    A proximal term's gradient λ(ūw - c̄) is added to the loss's: autograd takes three times the passes.
    """
    names, near = list(params), taken_apart(loss)[0]
    pulls = near.lam != 0 and near.cbar.keys() == params.keys()  # else autograd says what is wrong
    loss, cbar = (near.loss, [layout(near.cbar[k]) for k in names]) if pulls else (loss, [])
    strength = near.lam * float(near.ubar)  # once: reading a number off a GPU waits for it
    weights = [layout(params[k]).requires_grad_() for k in names]
    adam = cfg.optimizer == "adam"
    m = [layout(opt.m[k]) for k in names] if adam or cfg.momentum else []
    v = [layout(opt.v[k]) for k in names] if adam else []
    own = dict(zip(names, weights, strict=True))
    step, in_place = opt.step.clone(), adam_in_place if adam else sgd_in_place
    for batch in batches:
        g = slopes(loss, own, pieces(loss, batch))
        if pulls:
            torch._foreach_add_(g, weights, alpha=strength)
            torch._foreach_add_(g, cbar, alpha=-near.lam)
        in_place(weights, g, m, v, step.add_(1), cfg, lr)
    done = {k: w.detach().contiguous() for k, w in own.items()}
    if m:
        opt = OptimizerState(step, *(dict(zip(names, x, strict=False)) for x in (m, v)))
    return done, opt


def minibatches(data: Data, rng: Stream, cfg: LocalConfig) -> Iterator[Data]:
    """The batches of one local training, in order; padding has mask 0."""
    if not cfg.batch_size:
        for _ in range(cfg.steps or cfg.epochs):
            yield data
        return
    index, weight = schedule_of(data, rng, cfg)
    per_pass = -(-len(data) // min(cfg.batch_size, len(data)))  # rows are gathered pass by pass
    for i, w in zip(index.split(per_pass), weight.split(per_pass), strict=True):
        yield from data.take(i, w)


def schedule_of(data: Data, rng: Stream, cfg: LocalConfig) -> tuple[Tensor, Tensor]:
    """Rows and weights [S, B] of the steps."""
    if not cfg.batch_size:
        steps, n = cfg.steps or cfg.epochs, len(data)
        return numbers(n, data.like.device).expand(steps, n), data.mask.expand(steps, n)
    return beside(data.like, *rng.on(data).schedule(len(data), cfg.batch_size, cfg.epochs, cfg.steps))


def passes_of(data: Data, rng: Stream, cfg: LocalConfig, times: int) -> tuple[Tensor, Tensor]:
    """`schedule_of` so many trainings of one pass, [times, S, B]."""
    if cfg.batch_size:
        return beside(data.like, *rng.on(data).passes(len(data), cfg.batch_size, times))
    index, weight = schedule_of(data, rng, replace(cfg, steps=1))
    return index.expand(times, 1, -1), weight.expand(times, 1, -1)


def where_any(rng: Stream, mask: Tensor, new: Any, old: Any) -> Any:
    """`new` where the batch holds a sample; a padded step of a stacked client changes nothing."""
    if not rng.ragged:
        return new
    some = mask.sum() > 0
    return pytree.tree_map(lambda a, b: torch.where(some, a, b), new, old)
