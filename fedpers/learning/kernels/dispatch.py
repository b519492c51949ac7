"""Local training of dense networks (linear, logistic, mlp), for a stack of clients, without autograd.

The gradient of such a network is three lines of algebra. `local.minimise` comes here by itself if the
loss is the model's own, also soft_proximal or with parts held fixed. A kernel in C does it (native.c);
where there is none, plain SGD is a handful of batched products (batched.py), and all else is
left to autograd.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedpers.core.data import Data
from fedpers.core.params import Params
from fedpers.core.pytree import flatten, rebuild
from fedpers.core.vmap import mapped_once, on_stacks
from fedpers.learning.kernels import native
from fedpers.learning.kernels.batched import Block, descend
from fedpers.learning.kernels.plan import (
    ADAM,
    HEADS,
    MOMENTUM,
    PLAIN,
    PROXIMAL,
    Plan,
    Training,
    layers_of,
    places_of,
)
from fedpers.learning.losses import Frozen, Loss, Proximal
from fedpers.learning.model import Model
from fedpers.learning.optimizers import LocalConfig, OptimizerState

_kernels: ContextVar[bool] = ContextVar("kernels", default=True)


@contextmanager
def autograd_only() -> Iterator[None]:
    """While this is open, dense models are left to torch: the kernels' reference."""
    token = _kernels.set(False)
    try:
        yield
    finally:
        _kernels.reset(token)


def kernels_allowed() -> bool:
    """Whether this is a place where a kernel may stand in for torch."""
    return _kernels.get() and mapped_once()


def plan_of(
    loss: Loss, params: Params, opt: OptimizerState, data: Data, cfg: LocalConfig, lr: Any
) -> tuple[Plan, Training] | None:
    """How to train without autograd, and on what; None if that cannot be done here."""
    found = _seen_through(loss, Model.loss, params, opt.step)
    if found is None or data.block is None or not isinstance(lr, float):
        return None
    plan, start = found
    rule = ADAM if cfg.optimizer == "adam" else MOMENTUM if cfg.momentum else PLAIN
    if rule == PLAIN and (cfg.weight_decay or plan.lam):
        rule = PROXIMAL
    n = len(data)
    plan = replace(
        plan,
        rule=rule,
        lr=lr,
        decay=cfg.weight_decay,
        momentum=cfg.momentum,
        per_pass=-(-n // min(cfg.batch_size or n, n)),
    )
    start = replace(start, m=opt.m, v=opt.v, step=opt.step)
    compiled = native.fits(plan, start, data.block.parts)
    if not compiled and not (plan.plain and cfg.batch_size):
        return None
    return replace(plan, compiled=compiled), start


def _seen_through(loss: Loss, kind: Any, params: Params, like: Tensor) -> tuple[Plan, Training] | None:
    """What a loss is made of, if it is this one of a dense model, with a proximal term or frozen parts."""
    pull = loss if isinstance(loss, Proximal) else Proximal(loss, 0.0, 0.0, {})
    given = pull.loss if isinstance(pull.loss, Frozen) else Frozen(pull.loss, {})
    model: Any = getattr(given.loss, "__self__", None)
    own = getattr(given.loss, "__func__", None) is kind  # and not a subclass's
    layers = (HEADS if kind is Model.head_loss else layers_of(model)) if own else None
    whole = given.fixed | params
    if layers is None:
        return None
    plan = Plan(layers, model.bias, model.task, frozenset(params), pull.lam)
    if not set(plan.names) <= whole.keys() or not plan.trained <= set(plan.names):
        return None
    cbar = pull.cbar if plan.lam else {}
    if plan.lam and cbar.keys() != params.keys():
        return None  # autograd says what is wrong
    ubar = torch.as_tensor(pull.ubar, dtype=like.dtype)
    return plan, Training({k: whole[k] for k in plan.names}, cbar, ubar, {}, {}, like.new_zeros(()), {})


def train(plan: Plan, given: Training, block: Block, index: Tensor, weight: Tensor) -> Training:
    """Each client's weighted mean loss; a step whose weights are all 0 changes nothing.

    Args:
        given: stacks [C, ...].
        block: the clients' data.
        index, weight: minibatches [C, S, B].
    """
    if plan.compiled:
        return native.train(plan, given, block.parts, index, weight)
    w = {k: v.clone(memory_format=torch.contiguous_format) for k, v in given.w.items()}
    descend(plan, w, block, index, weight)
    return replace(given, w=w)


def minimise_dense(plan: Plan, given: Training, block: Block, index: Tensor, weight: Tensor) -> Training:
    """The training of one client, alone or under vmap."""
    leaves, form = flatten(given)
    kinds = (given.w, given.m, given.v)

    def all_clients(index: Tensor, weight: Tensor, *leaves: Tensor) -> list[Tensor]:
        done = train(plan, rebuild(form, leaves), block, index, weight)
        moved = [kind[k] for kind in (done.w, done.m, done.v) if kind for k in plan.moving]
        return [*moved, done.step]

    values = iter(on_stacks(all_clients, index, weight, *leaves))
    w, m, v = ({k: next(values) for k in plan.moving} if kind else {} for kind in kinds)
    return replace(given, w=w, m=m, v=v, step=next(values))


def scores_of(model: Model, params: Params, data: Data) -> tuple[Tensor, Tensor] | None:
    """(mean loss, accuracy) on a stacked client's samples from a kernel; None if that cannot be done here."""
    stacked = type(data) is not Data and data.block is not None  # one client alone: packing costs more
    layers = layers_of(model) if stacked and kernels_allowed() and _scores_as_usual(model) else None
    if layers is None:
        return None
    places, parts = places_of(layers), data.block.parts
    w = {k: params[k] for k in places if k in params}
    if not native.knows(w, places, model.task, parts):
        return None

    def all_clients(_: Tensor, *leaves: Tensor) -> tuple[Tensor, Tensor]:
        return native.assess(dict(zip(w, leaves, strict=True)), places, model.task, parts)

    loss, accuracy = on_stacks(all_clients, data.num, *w.values())  # the number: a client's own, always
    return loss, accuracy


def _scores_as_usual(model: Model) -> bool:
    """Whether loss and right answers are those of `Model` and no subclass's."""
    own = type(model)
    return own.sample_losses is Model.sample_losses and own.correct is Model.correct


def gradient_of(loss: Loss, *args: Any) -> Params | None:
    """The gradient of a loss in its first argument without autograd; None if that cannot be done here.

    Args:
        args: (parameters, data); of `Model.head_loss` (head, features, data).
    """
    *inner, data = args
    if not inner or not isinstance(data, Data) or not isinstance(inner[0], dict) or not inner[0]:
        return None
    kind, x = (Model.loss, data.x) if len(inner) == 1 else (Model.head_loss, inner[1])
    found = _seen_through(loss, kind, inner[0], next(iter(inner[0].values())))
    if found is None or not native.fits(*found, [Data(x, data.y, data.mask)]):
        return None
    plan, start = found
    leaves, form = flatten(start)

    def all_clients(x: Tensor, y: Tensor, mask: Tensor, *leaves: Tensor) -> list[Tensor]:
        parts = [Data(*row) for row in zip(x.contiguous(), y.contiguous(), mask, strict=True)]
        every = torch.arange(mask.shape[1]).expand(len(mask), 1, -1)
        gradients = native.train(plan, rebuild(form, leaves), parts, every, mask.unsqueeze(1)).m
        return [gradients[k] for k in plan.moving]

    gradients = on_stacks(all_clients, x, data.y, data.mask, *leaves)
    return dict(zip(plan.moving, gradients, strict=True))
