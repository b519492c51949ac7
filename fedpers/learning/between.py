"""Weights between two models, learnt entry by entry."""

from dataclasses import replace

import torch

from fedpers.core.data import Data
from fedpers.core.params import Params, between, sub
from fedpers.core.rng import Stream
from fedpers.core.vmap import scalar
from fedpers.learning.gradients import grad
from fedpers.learning.kernels.dispatch import minimise_dense, minimise_in_turn
from fedpers.learning.kernels.plan import BLEND, Plan, Training
from fedpers.learning.local_training import dense_plan
from fedpers.learning.losses import Loss
from fedpers.learning.minibatches import minibatches, passes_of, schedule_of, where_any
from fedpers.learning.optimizers import LocalConfig, OptimizerState


def minimise_between(
    loss: Loss, own: Params, other: Params, W: Params, data: Data, rng: Stream, cfg: LocalConfig, eta: float
) -> Params:
    """W after plain steps of size eta on loss(own + (other - own) ⊙ W), each clipped to [0, 1].

    Args:
        own, other: what the weights W are between; parameters that W lacks are not read.
        cfg: which minibatches; its optimiser is not used.
    """
    own, other = ({k: model[k] for k in W} for model in (own, other))
    dense = _blending(loss, own, other, W, data, cfg, eta)
    if dense is not None:
        return minimise_dense(*dense, data.block, *schedule_of(data, rng, cfg)).m
    slope, way = grad(loss), sub(other, own)
    for batch in minibatches(data, rng, cfg):
        g = slope(between(own, other, W), batch)
        stepped = {k: (w - eta * g[k] * way[k]).clamp(0, 1) for k, w in W.items()}
        W = where_any(rng, batch.mask, stepped, W)
    return W


def passes_between(
    loss: Loss,
    own: Params,
    other: Params,
    W: Params,
    data: Data,
    rng: Stream,
    cfg: LocalConfig,
    eta: float,
    times: int,
) -> Params:
    """Stacks [times, ...]: W after each of so many `minimise_between` of one pass, each from the W before."""
    cfg = replace(cfg, epochs=1, steps=0)
    own, other = ({k: model[k] for k in W} for model in (own, other))
    dense = _blending(loss, own, other, W, data, cfg, eta) if times > 1 else None
    if dense is not None:
        return minimise_in_turn(*dense, data.block, *passes_of(data, rng, cfg, times))
    tried = [W]
    for _ in range(times):
        tried.append(minimise_between(loss, own, other, tried[-1], data, rng, cfg, eta))
    if times == 1:
        return {k: w.unsqueeze(0) for k, w in tried[1].items()}
    return {k: torch.stack([w[k] for w in tried[1:]]) for k in W}


def _blending(
    loss: Loss, own: Params, other: Params, W: Params, data: Data, cfg: LocalConfig, eta: float
) -> tuple[Plan, Training] | None:
    """What a kernel needs for steps of W; None if there is none."""
    like = next(iter(W.values()))
    state = OptimizerState(scalar(0.0, like.dtype, like.device), W, sub(other, own))
    dense = dense_plan(loss, between(own, other, W), state, data, cfg, eta)
    if dense is None or dense[0].lam:
        return None
    return replace(dense[0], rule=BLEND, decay=0.0), replace(dense[1], cbar=own)
