"""Dense networks (linear, logistic, mlp, lenet) without autograd: in C, for one client or a stack.

`minimise` and `grad` come here by themselves if the loss is the model's own, also with a proximal term
or with frozen parameters. Where there is no kernel (no compiler, another device or type, FEDPERS_NATIVE=0)
all functions return None, and autograd does the work.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedpers.core.params import Params, split
from fedpers.core.pytree import changed, flatten, rebuild
from fedpers.core.samples import Data, Part
from fedpers.core.scope import holding
from fedpers.core.tasks import PLAIN
from fedpers.core.vmap import mapped_once, numbers, on_stacks, readable, scalar
from fedpers.learning.kernels import native
from fedpers.learning.kernels.plan import (
    HEADS,
    Plan,
    Shape,
    Training,
    layers_of,
    shared_plan,
    small_convs,
    stepping,
    understood,
)
from fedpers.learning.losses import Known, Loss, is_known, taken_apart
from fedpers.learning.model import Model
from fedpers.learning.optimizers import LocalConfig, OptimizerState

ON_DATA = (Model.loss, Model.features_loss)  # what a kernel can be for: functions of (parameters, data)
_kernels: ContextVar[bool] = ContextVar("kernels", default=True)


def autograd_only() -> AbstractContextManager[None]:
    """While this is open, dense models are left to torch: the reference for the kernels."""
    return holding(_kernels, False)


def kernels_allowed() -> bool:
    """Whether a kernel may stand in for torch here."""
    return _kernels.get() and mapped_once()


def has_block(data: Data, params: Params) -> bool:
    """Whether `data.block` has the samples of all whose parameters these are.

    Not in a stack of clients if the samples are no client's own, as those that came with an order.
    """
    if data.block is not data:
        return True
    whole = data.of if isinstance(data, Part) else data
    return all(map(readable, (whole.x, whole.y, whole.mask, *params.values())))


def plan_of(
    loss: Loss, params: Params, opt: OptimizerState, data: Data, cfg: LocalConfig, lr: Any
) -> tuple[Plan, Training] | None:
    """The plan of a local training without autograd and its tensors; None if there is no kernel for it."""
    if data.block is None or not isinstance(lr, float) or not understood(cfg):
        return None
    found = (
        _known_parts(loss, params, opt, data) if is_known(loss) else parts_of(loss, ON_DATA, params, opt.step)
    )
    if found is None:
        return None
    plan = stepping(found[0], cfg, lr)
    moments = {k: getattr(opt, k) for k in plan.program.keeps}
    step = (opt.step,) if moments else ()  # plain steps nobody counts
    start = changed(found[1], vectors=found[1].vectors | moments, step=step)
    return (plan, start) if native.fits(plan, start, data.block.parts) else None


def _known_parts(
    loss: Known, params: Params, opt: OptimizerState, data: Data
) -> tuple[Plan, Training] | None:
    """`parts_of` the model's own loss with all parameters trained, and what the loss has beside it."""
    extra, parts = loss.beside.extra, data.block.parts
    second, own = split(params, lambda k: bool(extra.prefix) and k.startswith(extra.prefix))
    found = parts_of(loss.model.loss, ON_DATA, own, opt.step)
    if found is None or isinstance(parts[0], Part):  # rows of a part are numbered otherwise
        return None
    plan = replace(found[0], extra=extra, trained=frozenset(params))
    start = changed(found[1], vectors=found[1].vectors | {"w": params})
    if set(plan.names) != params.keys() or not native.fits(plan, start, parts):
        return None
    if len(plan.layers) == 1 and not second:  # all is head, and nothing moves the features
        return found
    tensors = loss.beside.rows(data)
    outputs, features = own[plan.places[-2]].shape
    given = [tuple(t.shape) for t in tensors] == extra.shapes(len(data), features, outputs)
    return (plan, changed(start, extra=tensors)) if given else None  # autograd says what is wrong


# methods behind a loss or a score of Model
MADE_OF = ("__call__", "body", "head", "head_loss", "sample_losses")


def parts_of(loss: Loss, kinds: Sequence[Any], params: Params, like: Tensor) -> tuple[Plan, Training] | None:
    """The parts of a loss: one of `kinds` (methods of Model), a proximal term, frozen parameters.

    None if the loss is made of anything else.
    """
    proximal, frozen = taken_apart(loss)
    model: Any = getattr(frozen.loss, "__self__", None)
    kind = getattr(frozen.loss, "__func__", None)
    if kind not in kinds or not of_model_alone(model):
        return None
    layers, convs = _layers(model) if kind is Model.loss else (HEADS, ())
    whole = frozen.fixed | params
    if layers is None or model.network.softmax_head:
        return None
    plan = shared_plan(Plan(layers, model.bias, model.task, frozenset(params), proximal.lam, convs=convs))
    if not set(plan.names) <= whole.keys() or not plan.trained <= set(plan.names):
        return None
    cbar = proximal.cbar if plan.lam else {}
    if plan.lam and cbar.keys() != params.keys():
        return None  # autograd says what is wrong
    ubar, w = proximal.ubar, {k: whole[k] for k in plan.names}
    ubar = ubar.to(like.dtype) if isinstance(ubar, Tensor) else scalar(ubar, like.dtype)
    return plan, Training({"w": w} | ({"c": cbar} if plan.lam else {}), {"ū": ubar} if plan.lam else {})


def of_model_alone(model: Any) -> bool:
    """Whether all that losses and scores are made of is Model's for a plain task, nothing somebody's own."""
    own = any(getattr(type(model), name) is not getattr(Model, name) for name in MADE_OF)
    return model.task in PLAIN and not own


def _layers(model: Model) -> tuple[tuple[str, ...] | None, tuple[Shape, ...]]:
    """The layers and the shapes of the convolutions that a kernel trains; (None, ()) for other models."""
    dense = layers_of(model)
    return (dense, ()) if dense else small_convs(model) or (None, ())


def minimise_dense(
    plan: Plan, given: Training, block: Any, index: Tensor, weight: Tensor, others: Tensor | None = None
) -> Training:
    """The training of one client, alone or under vmap; a step whose weights are all 0 changes nothing.

    Args:
        given: one client's tensors.
        block: `Data.block` of that client, the data of the whole stack.
        index, weight: minibatches [S, B], the rows of each step and their weights.
        others: [S, B] rows of the other samples that some programs look at.

    Returns:
        `given` after the training; its vectors are those that the plan wants, of what was trained only.
    """
    return minimise_dense_each(plan, [given], block, [(index, weight)], others)[0]


def minimise_dense_each(
    plan: Plan,
    given: Sequence[Training],
    block: Any,
    batches: Sequence[tuple[Tensor, Tensor]],
    others: Tensor | None = None,
) -> list[Training]:
    """`minimise_dense` from several models of a client, each on minibatches of its own."""
    leaves, form = flatten([list(given), list(batches), () if others is None else (others,)])
    forms = list[Any]()

    def all_clients(*leaves: Tensor) -> list[Tensor]:
        found = list[Training]()
        starts, schedules, others = rebuild(form, leaves)
        for start, (index, weight) in zip(starts, schedules, strict=True):
            done = native.only_wanted(plan, start)
            # of several models there may be some for which no client has a sample
            if len(given) == 1 or weight.numpy().any():  # several times as quick as torch's
                parts, (rows, *more) = whole_rows(block.parts, index, *others)
                done = native.train(plan, start, parts, rows, weight, *more)
            found.append(done)
        flat, after = flatten(found)
        forms.append(after)
        return flat

    values = on_stacks(all_clients, *leaves)
    return rebuild(forms[0], values)  # type: ignore[no-any-return]


def minimise_then_gradient(
    plan: Plan, given: Training, block: Any, index: Tensor, weight: Tensor, steps: int
) -> tuple[Params, Params]:
    """One client's training on all samples at once, then the gradient in all parameters, frozen ones too.

    What lies below the trained layers is gone through once.

    Args:
        index, weight: all samples [1, n], the rows and their weights.

    Returns:
        What was trained, and the gradient.
    """
    leaves, form = flatten(given)

    def all_clients(index: Tensor, weight: Tensor, *leaves: Tensor) -> list[Tensor]:
        parts, (rows,) = whole_rows(block.parts, index)
        every = [t.expand(-1, steps + 1, -1) for t in (rows, weight)]
        done = native.train(plan, rebuild(form, leaves), parts, *every, then="G").vectors
        return [*done["w"].values(), *done["G"].values()]

    values = iter(on_stacks(all_clients, index, weight, *leaves))
    w, g = ({k: next(values) for k in names} for names in (plan.moving, plan.names))
    return w, g


def whole_rows(parts: Sequence[Data], *rows: Tensor) -> tuple[Sequence[Data], list[Tensor]]:
    """(data, each of the rows [C, S, B]) where rows of parts, some of a client's samples, need no copy."""
    if not isinstance(parts[0], Part):
        return parts, list(rows)
    chosen: list[Tensor] = [p.chosen for p in parts]  # type: ignore[attr-defined]
    return [p.of for p in parts], [_of_whole(chosen, i) for i in rows]  # type: ignore[attr-defined]


def _of_whole(chosen: list[Tensor], index: Tensor) -> Tensor:
    if all([rows is chosen[0] for rows in chosen]):  # of clients of one size
        return chosen[0].take(index)
    if all([len(rows) == len(chosen[0]) for rows in chosen]):
        return torch.stack(chosen).gather(1, index.flatten(1)).view(index.shape)
    return torch.stack([rows.take(i) for rows, i in zip(chosen, index, strict=True)])


def gradient_of(loss: Loss, *args: Any) -> Params | None:
    """The gradient of a loss in its first argument without autograd; None if there is no kernel for it.

    Args:
        args: (parameters, data); of `Model.head_loss` (head, features, data).
    """
    *inner, data = args
    if not inner or not isinstance(data, Data) or not isinstance(inner[0], dict) or not inner[0]:
        return None
    kinds = ON_DATA if len(inner) == 1 else (Model.head_loss,)
    found = parts_of(loss, kinds, inner[0], next(iter(inner[0].values())))
    if found is None:
        return None
    return _gradient_in_place(*found, data) if len(inner) == 1 else _gradient_at(*found, inner[1], data)


def _gradient_in_place(plan: Plan, start: Training, data: Data) -> Params | None:
    """Reads stacked samples in place, copies others; None without a kernel."""
    block = data.block
    if block is None or block is data or any(isinstance(p, Part) for p in block.parts):
        return _gradient_at(plan, start, data.x, data)
    return _gradient(plan, start, block.parts, data.mask) if native.fits(plan, start, block.parts) else None


def _gradient_at(plan: Plan, start: Training, x: Tensor, data: Data) -> Params | None:
    """Of samples whose inputs are x; None if there is no kernel for them."""
    if not native.fits(plan, start, [Data(x, data.y, data.mask)]):
        return None
    parts: list[Data] = []

    def all_clients(x: Tensor, y: Tensor, mask: Tensor, *_: Tensor) -> list[Tensor]:
        parts.extend(Data(*row) for row in zip(x.contiguous(), y.contiguous(), mask, strict=True))
        return []

    on_stacks(all_clients, x, data.y, data.mask, *start.w.values())  # a stack if the parameters are of one
    return _gradient(plan, start, parts, data.mask)


def _gradient(plan: Plan, start: Training, parts: Sequence[Data], mask: Tensor) -> Params:
    """One client's gradient on samples of a `mask` [n]; alone or under vmap."""
    leaves, form = flatten(start)

    def all_clients(mask: Tensor, *leaves: Tensor) -> list[Tensor]:
        every = numbers(mask.shape[1], mask.device).expand(len(mask), 1, -1)
        done = native.train(plan, rebuild(form, leaves), parts, every, mask.unsqueeze(1), always=True)
        return [done.vectors["g"][k] for k in plan.moving]

    return dict(zip(plan.moving, on_stacks(all_clients, mask, *leaves), strict=True))
