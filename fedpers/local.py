"""Gradients and the one local training loop.

A method says what is trainable and what the loss is; it never calls backward. `grad` is autograd for
one client and torch.func for a stack of clients, so that one definition is fast both ways.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from fedpers.data import Data
from fedpers.dense import gradient_of, kernels_allowed, minimise_dense, plan_of
from fedpers.losses import Loss
from fedpers.native import PLAIN
from fedpers.params import Params
from fedpers.record import record
from fedpers.rng import Stream

_stacked: ContextVar[bool] = ContextVar("stacked", default=False)


@contextmanager
def stacked() -> Iterator[None]:
    """While this is open, `grad` is torch.func's: the caller runs a stack of clients under vmap."""
    token = _stacked.set(True)
    try:
        yield
    finally:
        _stacked.reset(token)


def grad(f: Callable[..., Tensor], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """The gradient of a scalar function in the given arguments (tensors, dicts or records)."""
    by_autograd = torch.func.grad(f, argnums=argnums) if _stacked.get() else _grad(f, argnums)
    if argnums != 0:
        return by_autograd

    def gradient(*args: Any) -> Any:
        if not kernels_allowed():
            return by_autograd(*args)
        if own is not None:
            return own(*args)
        found = gradient_of(f, *args)
        return by_autograd(*args) if found is None else found

    own = getattr(f, "gradient", None)               # of a loss that knows it
    return gradient


def _grad(f: Callable[..., Tensor], argnums: int | tuple[int, ...]) -> Callable[..., Any]:
    """By autograd, for one client alone."""
    wanted = (argnums,) if isinstance(argnums, int) else argnums

    def gradient(*args: Any) -> Any:
        leaves = {i: pytree.tree_flatten(args[i]) for i in wanted}
        fresh = {i: [t.detach().requires_grad_() for t in flat] for i, (flat, _) in leaves.items()}
        full = [
            pytree.tree_unflatten(fresh[i], leaves[i][1]) if i in leaves else a
            for i, a in enumerate(args)
        ]
        with torch.enable_grad():
            value = f(*full)
        inputs = [t for i in wanted for t in fresh[i]]
        flat_grads = iter(torch.autograd.grad(value, inputs, materialize_grads=True))
        trees = [
            pytree.tree_unflatten([next(flat_grads) for _ in fresh[i]], leaves[i][1]) for i in wanted
        ]
        return trees[0] if isinstance(argnums, int) else tuple(trees)

    return gradient


@dataclass(frozen=True)
class LocalConfig:
    """How a client trains between two messages."""

    lr: float = 0.05
    epochs: int = 1                     # passes over the local data
    steps: int = 0                      # minibatch steps instead of epochs, if > 0
    batch_size: int = 10                # 0: the whole local data at each step
    momentum: float = 0.0               # SGD only
    weight_decay: float = 0.0
    optimizer: Literal["sgd", "adam"] = "sgd"

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        found = []
        if self.lr < 0:
            found.append(f"local.lr={self.lr}: must not be negative")
        for name in ("epochs", "steps", "batch_size"):
            if getattr(self, name) < 0:
                found.append(f"local.{name}={getattr(self, name)}: must be at least 0")
        if not 0 <= self.momentum < 1:
            found.append(f"local.momentum={self.momentum}: must be in [0, 1)")
        if self.momentum and self.optimizer == "adam":
            found.append("local.momentum is for optimizer=sgd; Adam has its own")
        return found

    def num_steps(self, n: int) -> int:
        """Gradient steps that `minimise` makes on n samples."""
        per_pass = -(-n // min(self.batch_size or n, n))
        return self.steps or self.epochs * per_pass

    def work(self, n: int) -> int:
        """Samples whose gradient is taken by `minimise` on n samples."""
        if not self.steps or not self.batch_size:
            return (self.steps or self.epochs) * n
        per_pass = -(-n // min(self.batch_size, n))
        whole, rest = divmod(self.steps, per_pass)
        return whole * n + min(rest * self.batch_size, n)


@record("learning.OptimizerState")
class Slots:
    """What an optimiser remembers; dicts like the parameters (empty where unused)."""

    step: Tensor        # scalar, steps made
    m: Params           # momentum, or Adam's first moment
    v: Params           # Adam's second moment


def new_slots(params: Params, cfg: LocalConfig) -> Slots:
    """The optimiser's memory before the first step."""
    def zeros() -> Params:
        return {k: torch.zeros_like(p) for k, p in params.items()}

    like = next(iter(params.values()), torch.zeros(()))       # a model may be all head, or all body
    uses_m = cfg.optimizer == "adam" or cfg.momentum > 0
    step = torch.zeros((), dtype=like.dtype, device=like.device)
    return Slots(step, zeros() if uses_m else {}, zeros() if cfg.optimizer == "adam" else {})


def minimise(
    loss: Loss, params: Params, data: Data, rng: Stream, cfg: LocalConfig, lr: Any = None
) -> Params:
    """Local training from `params` with a fresh optimiser; `lr` overrides the configured one."""
    return minimise_from(loss, params, new_slots(params, cfg), data, rng, cfg, lr)[0]


def minimise_from(
    loss: Loss, params: Params, slots: Slots, data: Data, rng: Stream, cfg: LocalConfig,
    lr: Any = None,
) -> tuple[Params, Slots]:
    """Local training that goes on with the optimiser's memory; returns both."""
    if not params:                           # nothing to train: a model may be all head, or all body
        return params, slots
    lr = cfg.lr if lr is None else lr
    shorter = getattr(loss, "minimise", None)          # of a loss that knows a way
    if shorter is not None and (found := shorter(params, slots, data, rng, cfg, lr)) is not None:
        return found, slots
    dense = _without_autograd(loss, params, slots, data, cfg, lr)
    if dense is not None:
        plan, start = dense
        done = minimise_dense(plan, start, data.block, *_schedule(data, rng, cfg))
        return done.w, Slots(done.step, done.m, done.v) if slots.m else slots
    if _alone() and cfg.optimizer == "sgd" and isinstance(lr, float):
        return _descend(loss, params, slots, minibatches(data, rng, cfg), cfg, lr)
    gradient = grad(loss)
    for batch in minibatches(data, rng, cfg):
        g = gradient(params, batch)
        stepped = sgd_step(params, g, slots, cfg, lr)
        params, slots = _where_any(rng, batch.mask, stepped, (params, slots))
    return params, slots


def minimise_paced(
    loss: Loss, params: Params, pace: Params, slots: Slots, data: Data, rng: Stream, cfg: LocalConfig, lr: Any
) -> Params | None:
    """Plain SGD with the gradients of some layers times a factor; None if there is no kernel for it.

    Args:
        pace: factors by layer (the prefix of its parameters' names), scalars.
    """
    dense = _without_autograd(loss, params, slots, data, cfg, lr)
    if dense is None or not dense[0].compiled or dense[0].rule != PLAIN:
        return None
    plan, start = dense
    done: Params = minimise_dense(plan, replace(start, pace=pace), data.block, *_schedule(data, rng, cfg)).w
    return done


def _alone() -> bool:
    """One client, and nobody differentiates through its training: it may write in place."""
    return not _stacked.get() and not torch.is_grad_enabled()


def _without_autograd(
    loss: Loss, params: Params, slots: Slots, data: Data, cfg: LocalConfig, lr: Any
) -> Any:
    """What `minimise_dense` needs, if the loss is one of a dense model; else None."""
    if not kernels_allowed() or (_stacked.get() and type(data) is Data):
        return None
    return plan_of(loss, params, slots, data, cfg, lr)


def _descend(
    loss: Loss, params: Params, slots: Slots, batches: Iterable[Data], cfg: LocalConfig, lr: float
) -> tuple[Params, Slots]:
    """`sgd_step` after `sgd_step`, in place on a copy: the same numbers, less time."""
    names = list(params)
    weights = [_layout(params[k]).requires_grad_() for k in names]
    moments = [slots.m[k].clone() for k in names] if cfg.momentum else []
    own = dict(zip(names, weights, strict=True))
    count = 0
    for batch in batches:
        with torch.enable_grad():
            value = loss(own, batch)
        g = list(torch.autograd.grad(value, weights, materialize_grads=True))
        if cfg.weight_decay:
            g = list(torch._foreach_add(g, weights, alpha=cfg.weight_decay))
        if cfg.momentum:
            torch._foreach_mul_(moments, cfg.momentum)
            torch._foreach_add_(moments, g)
            g = moments
        torch._foreach_add_(weights, g, alpha=-lr)
        count += 1
    done = {k: w.detach().contiguous() for k, w in own.items()}
    if cfg.momentum:
        slots = Slots(slots.step + count, dict(zip(names, moments, strict=True)), {})
    return done, slots


def _layout(weight: Tensor) -> Tensor:
    """A copy to write on; kernels of convolutions channels last, which is a quarter faster."""
    form = torch.channels_last if weight.dim() == 4 else torch.contiguous_format
    return weight.detach().clone(memory_format=form)


def minibatches(data: Data, rng: Stream, cfg: LocalConfig) -> Iterator[Data]:
    """The batches of one local training, in order; padding has mask 0."""
    if not cfg.batch_size:
        for _ in range(cfg.steps or cfg.epochs):
            yield data
        return
    index, weight = _schedule(data, rng, cfg)
    per_pass = -(-len(data) // min(cfg.batch_size, len(data)))    # rows are gathered pass by pass
    for i, w in zip(index.split(per_pass), weight.split(per_pass), strict=True):
        yield from data.take(i, w)


def _schedule(data: Data, rng: Stream, cfg: LocalConfig) -> tuple[Tensor, Tensor]:
    """Rows and weights [S, B] of the steps."""
    if not cfg.batch_size:
        steps, n = cfg.steps or cfg.epochs, len(data)
        return torch.arange(n, device=data.y.device).expand(steps, n), data.mask.expand(steps, n)
    index, weight = rng.schedule(len(data), cfg.batch_size, cfg.epochs, cfg.steps)
    return index.to(data.y.device), weight.to(data.mask)


def _where_any(rng: Stream, mask: Tensor, new: Any, old: Any) -> Any:
    """`new` where the batch holds a sample; a padded step of a stacked client changes nothing."""
    if not rng.ragged:
        return new
    some = mask.sum() > 0
    return pytree.tree_map(lambda a, b: torch.where(some, a, b), new, old)


def sgd_step(
    params: Params, g: Params, slots: Slots, cfg: LocalConfig, lr: Any
) -> tuple[Params, Slots]:
    """One step of SGD (with momentum) or Adam, as torch.optim defines them."""
    if cfg.weight_decay:
        g = {k: torch.add(v, params[k], alpha=cfg.weight_decay) for k, v in g.items()}
    if cfg.optimizer == "adam":
        return adam_step(params, g, slots, lr)
    if cfg.momentum:
        g = {k: cfg.momentum * slots.m[k] + v for k, v in g.items()}
        slots = Slots(slots.step + 1, g, {})
    if isinstance(lr, Tensor):
        return {k: params[k] - lr * v for k, v in g.items()}, slots
    return {k: torch.add(params[k], v, alpha=-lr) for k, v in g.items()}, slots


def adam_step(
    params: Params, g: Params, slots: Slots, lr: Any,
    beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8,
) -> tuple[Params, Slots]:
    """One step of Adam (Kingma & Ba, Algorithm 1); `lr` may be a tensor."""
    step = slots.step + 1
    m = {k: beta1 * slots.m[k] + (1 - beta1) * v for k, v in g.items()}
    v = {k: beta2 * slots.v[k] + (1 - beta2) * x * x for k, x in g.items()}
    rate = lr / (1 - beta1**step)
    new = {
        k: params[k] - rate * m[k] / ((v[k] / (1 - beta2**step)).sqrt() + eps) for k in params
    }
    return new, Slots(step, m, v)
