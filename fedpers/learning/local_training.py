"""Gradients and the one local training loop.

A method says what is trainable and what the loss is; it never calls backward. `grad` is autograd for
one client and torch.func for a stack of clients, so that one definition is fast both ways.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedpers.core.data import Data
from fedpers.core.params import Params, alike
from fedpers.core.pytree import changed
from fedpers.core.rng import Stream
from fedpers.core.witness import stepped_by
from fedpers.learning.dense_steps import minimise_written_out
from fedpers.learning.gradients import grad, knows_training
from fedpers.learning.kernels.dispatch import (
    has_block,
    kernels_allowed,
    minimise_dense,
    minimise_dense_each,
    minimise_then_gradient,
    plan_of,
)
from fedpers.learning.kernels.graphs import minimise_recorded
from fedpers.learning.losses import Loss
from fedpers.learning.minibatches import scaled_minibatches, scales_steps, schedule_of, where_any
from fedpers.learning.optimizers import (
    MOMENTS,
    LocalConfig,
    OptimizerState,
    init_optimizer,
    one_step,
    program,
)
from fedpers.learning.soft_targets import softened
from fedpers.learning.step import Now
from fedpers.learning.torch_steps import accumulated, alone, descend
from fedpers.learning.training_round import memory_of


def minimise(loss: Loss, params: Params, data: Data, rng: Stream, cfg: LocalConfig, lr: Any = None) -> Params:
    """Local training from `params`; `lr` overrides the configured one.

    The optimiser is new, or with `keep_momentum` that of the same training in the client's last round.
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
    loss = softened(loss, cfg)
    opt = init_optimizer(models[0], cfg)
    own = knows_training(loss) or memory_of(cfg) or not alike(models)
    dense = None if own else dense_plan(loss, models[0], opt, data, cfg, cfg.lr)
    if dense is None:
        return [minimise(loss, phi, data, rng, cfg) for phi, rng in zip(models, rngs, strict=True)]
    stepped_by(program(cfg))
    plan, start = replace(dense[0], wanted=("w",)), dense[1]
    starts = [changed(start, vectors=start.vectors | {"w": start.w | phi}) for phi in models]
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
    """Local training that continues with the optimiser's state; returns parameters and state.

    Without `keeps` nobody may use the state that is returned, and moments are not copied.
    """
    if not params:  # nothing to train: a model may be all head, or all body
        return params, opt
    stepped_by(program(cfg))
    lr, loss = cfg.lr if lr is None else lr, softened(loss, cfg)
    if knows_training(loss) and (found := loss.minimise(params, opt, data, rng, cfg, lr)) is not None:
        return found
    if (found := minimise_by_kernel(loss, params, opt, data, rng, cfg, lr, keeps=keeps)) is not None:
        return found
    if (found := minimise_written_out(loss, params, opt, data, rng, cfg, lr)) is not None:
        return found
    if alone() and isinstance(lr, float):
        return descend(loss, params, opt, scaled_minibatches(data, rng, cfg), cfg, lr)
    steps = program(cfg)

    def step(gradient: Any, w: Params, opt: OptimizerState, batch: Data, step_scale: Any = 1.0) -> Any:
        now = Now(partial(accumulated, gradient, cfg.micro_batch, batch), lr * step_scale, opt.step + 1)
        return where_any(rng, batch.mask, one_step(steps, w, opt, now), (w, opt))

    draw, how = lambda: schedule_of(data, rng, cfg), (cfg, lr, rng.ragged)
    recordable = isinstance(lr, float) and not scales_steps(cfg)
    if recordable and (found := minimise_recorded(loss, params, opt, data, how, draw, step)):
        return found
    gradient = grad(loss)
    for batch, step_scale in scaled_minibatches(data, rng, cfg):
        params, opt = step(gradient, params, opt, batch, step_scale)
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
        plan, start = replace(plan, wanted=plan.wanted if keeps else ("w",)), changed(start, each=each)
    done = minimise_dense(plan, start, data.block, *schedule_of(data, rng, cfg))
    moments = [done.vectors.get(k, {}) for k in MOMENTS]
    return done.w, OptimizerState(done.step[0], *moments) if done.step else opt


def minimise_scaled(
    loss: Loss,
    params: Params,
    gradient_scale: Params,
    opt: OptimizerState,
    data: Data,
    rng: Stream,
    cfg: LocalConfig,
    lr: Any,
) -> tuple[Params, Params, Tensor] | None:
    """SGD with the gradients of some layers times a factor; None if there is no kernel for it.

    Args:
        gradient_scale: factors by layer (prefix of its parameters), scalars; weight decay has none.

    Returns:
        The parameters, their momentum ({} without) and the weights [S, B] of the minibatches.
    """
    dense = dense_plan(loss, params, opt, data, cfg, lr)
    if dense is None or cfg.optimizer != "sgd" or cfg.clip_norm:
        return None
    (plan, start), (index, weight) = dense, schedule_of(data, rng, cfg)
    done = minimise_dense(plan, changed(start, gradient_scale=gradient_scale), data.block, index, weight)
    return done.w, done.vectors.get("m", {}), weight


def minimise_then_grad(
    loss: Loss, params: Params, data: Data, rng: Stream, cfg: LocalConfig
) -> tuple[Params, Params] | None:
    """Plain steps on all samples at once, then the gradient in all parameters, also frozen ones.

    What lies below `params` is gone through once. None if there is no kernel for it.

    Args:
        loss: a model's own, with `Frozen` lower layers.
        params: of the uppermost layers.
        cfg: rate and number of steps.

    Returns:
        What was trained, and the gradient.
    """
    if not params:
        return None
    dense = dense_plan(loss, params, init_optimizer(params, cfg), data, cfg, cfg.lr)
    if dense is None:
        return None
    (plan, start), (index, weight) = dense, schedule_of(data, rng, replace(cfg, steps=1))
    return minimise_then_gradient(plan, start, data.block, index, weight, cfg.steps)


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


def dense_plan(loss: Loss, params: Params, opt: OptimizerState, data: Data, cfg: LocalConfig, lr: Any) -> Any:
    """What `minimise_dense` needs, if the loss is one of a dense model; else None."""
    if not kernels_allowed() or not has_block(data, params):
        return None
    return plan_of(loss, params, opt, data, cfg, lr)
