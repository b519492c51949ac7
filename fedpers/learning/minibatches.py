"""The minibatches of a local training, and the scale of each step's rate."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from fedpers.core.data import Data
from fedpers.core.rng import Stream, beside
from fedpers.core.vmap import numbers, readable
from fedpers.learning.draws import steps_of
from fedpers.learning.optimizers import LocalConfig


def minibatches(data: Data, rng: Stream, cfg: LocalConfig) -> Iterator[Data]:
    """The batches of one local training, in order; padding has mask 0."""
    return steps_of(_minibatches(data, rng, cfg))


def _minibatches(data: Data, rng: Stream, cfg: LocalConfig) -> Iterator[Data]:
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


def where_any(rng: Stream, mask: Tensor, new: Any, old: Any) -> Any:
    """`new` where the batch holds a sample; a padded step of a stacked client changes nothing."""
    if not rng.ragged:
        return new
    some = mask.sum() > 0
    return pytree.tree_map(lambda a, b: torch.where(some, a, b), new, old)


def scales_steps(cfg: LocalConfig) -> bool:
    """Whether the rate changes from step to step."""
    return cfg.warmup_steps > 0 or cfg.step_schedule != "constant"


def scaled_minibatches(data: Data, rng: Stream, cfg: LocalConfig) -> Iterator[tuple[Data, Any]]:
    """Each minibatch, and the factor of its step's rate: a number, or a scalar tensor in a stack."""
    if not scales_steps(cfg):
        yield from ((batch, 1.0) for batch in minibatches(data, rng, cfg))
        return
    index, weight = schedule_of(data, rng, cfg)
    factors = step_scales(cfg, weight)
    each = factors.tolist() if readable(factors) else factors.unbind()
    batches = data.take(index, weight) if cfg.batch_size else [data] * len(index)
    yield from zip(steps_of(iter(batches)), each, strict=True)


def step_scales(cfg: LocalConfig, weight: Tensor) -> Tensor:
    """[S] factors of the rate in a client's steps, of weights [S, B]; steps without a sample do not count.

    As torch's LinearLR(start_factor=1/k, total_iters=k-1) and CosineAnnealingLR(T_max=steps), multiplied.
    """
    real = (weight.sum(-1) > 0).to(weight)
    done = real.cumsum(-1) - 1
    factors = ((done + 1) / cfg.warmup_steps).clamp(max=1) if cfg.warmup_steps else torch.ones_like(done)
    if cfg.step_schedule == "cosine":
        factors = factors * (1 + torch.cos(torch.pi * done / real.sum())) / 2
    return factors
