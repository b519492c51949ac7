"""Learns, for each entry of two models, the weight with which it is taken from the second."""

from dataclasses import replace

import torch

from fedpers.core.data import Data
from fedpers.core.params import Params, between, sub
from fedpers.core.pytree import changed
from fedpers.core.rng import Stream
from fedpers.learning.gradients import grad
from fedpers.learning.kernels.dispatch import minimise_dense
from fedpers.learning.kernels.plan import Plan, Training
from fedpers.learning.local_training import dense_plan
from fedpers.learning.losses import Loss
from fedpers.learning.minibatches import minibatches, schedule_of, where_any
from fedpers.learning.optimizers import LocalConfig, init_optimizer
from fedpers.learning.step import Clip, Grad, Mul, Program, Rate

STEP = Program((
    Mul("u", "own", 1.0, "W", "way"),
    Grad("g", "u"),
    Mul("W", "W", Rate(), "g", "way"),
    Clip("W", 0.0, 1.0),
))  # fmt: skip


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
        return minimise_dense(*dense, data.block, *schedule_of(data, rng, cfg)).vectors["W"]
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
    """Stacks [times, ...]: W after each of `times` passes of `minimise_between`, each from the W before."""
    cfg = replace(cfg, epochs=1, steps=0)
    tried = [W]
    for _ in range(times):
        tried.append(minimise_between(loss, own, other, tried[-1], data, rng, cfg, eta))
    return {k: torch.stack([w[k] for w in tried[1:]]) for k in W}


def _blending(
    loss: Loss, own: Params, other: Params, W: Params, data: Data, cfg: LocalConfig, eta: float
) -> tuple[Plan, Training] | None:
    """What a kernel needs for steps of W; None if there is none."""
    plain = LocalConfig(lr=eta, batch_size=cfg.batch_size)
    dense = dense_plan(loss, own, init_optimizer(own, plain), data, plain, eta)
    if dense is None or dense[0].lam:
        return None
    vectors = {"w": dense[1].w, "W": W, "own": own, "way": sub(other, own)}
    return replace(dense[0], program=STEP, wanted=("W",)), changed(dense[1], vectors=vectors)
