"""Losses and right answers of models that nobody trains here: by a kernel in one call, else by torch."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedpers.core.data import Data
from fedpers.core.items import ModelBatch
from fedpers.core.params import Params, alike
from fedpers.core.vmap import on_stacks
from fedpers.learning.kernels import assess, native
from fedpers.learning.kernels.dispatch import ON_DATA, has_block, kernels_allowed, of_model_alone, parts_of
from fedpers.learning.kernels.plan import Plan, Training, layers_of, places_of
from fedpers.learning.losses import Loss, taken_apart
from fedpers.learning.model import Model

TOGETHER = 64  # models that torch scores in one call


def _scored_by(model: Model, params: Params, data: Data) -> tuple[list[str], Params] | None:
    """(places, parameters there) of a stacked client's model that a kernel scores; None: torch does."""
    stacked = type(data) is not Data and data.block is not None  # one client alone: packing costs more
    layers = layers_of(model) if stacked and kernels_allowed() and _scores_as_usual(model) else None
    if layers is None:
        return None
    places = places_of(layers)
    w = {k: params[k] for k in places if k in params}
    return (places, w) if native.knows(w, places, model.task, data.block.parts) else None


def scores_of(model: Model, params: Params, data: Data) -> tuple[Tensor, Tensor] | None:
    """(mean loss, accuracy) on a stacked client's samples, two scalars; None if there is no kernel for it."""
    found = _scored_by(model, params, data)
    if found is None:
        return None
    places, w = found
    parts = data.block.parts

    def all_clients(_: Tensor, *leaves: Tensor) -> tuple[Tensor, Tensor]:
        models = {k: v.unsqueeze(1) for k, v in zip(w, leaves, strict=True)}
        loss, accuracy = assess.assess(models, places, model.task, parts)
        return loss[:, 0], accuracy[:, 0]

    loss, accuracy = on_stacks(all_clients, data.num, *w.values())  # `num` differs by client: always a stack
    return loss, accuracy


def sample_losses_of(model: Model, models: Sequence[Params], data: Data) -> Tensor:
    """[J, n] the loss of each sample under J models; what it is for padding nobody may use.

    By the kernel where there is one, in one call for all clients of a stack, else by torch.
    """
    found = _by_kernel(assess.sample_losses, model, models, data, len(data))
    if found is None:
        return torch.stack([model.sample_losses(model(w, data.x), data.y) for w in models])
    return found


def mean_losses_of(model: Model, models: Sequence[Params], data: Data) -> Tensor:
    """[J] float64 the mean loss of a client's samples under J models, as by `sample_losses_of`."""
    found = _by_kernel(assess.mean_losses, model, models, data)
    if found is None:
        losses = sample_losses_of(model, models, data).double()
        return torch.where(data.mask > 0, losses, 0.0).sum(1) / data.num
    return found


def _by_kernel(
    score: Callable[..., Tensor], model: Model, models: Sequence[Params], data: Data, *more: int
) -> Tensor | None:
    """A client's row of what `score` makes of all clients' stacks; None if there is no kernel for it."""
    found = _scored_by(model, models[0], data) if alike(models) else None
    if found is None:
        return None
    places, w = found
    block, names = data.block, list(w)

    def all_clients(_: Tensor, *leaves: Tensor) -> list[Tensor]:
        given = iter(leaves)
        stacks = [{k: next(given) for k in names} for _ in models]
        return [score(stacks, places, model.task, block.parts, *more)]

    return on_stacks(all_clients, data.num, *(w[k] for w in models for k in names))[0]


def losses_of(loss: Loss, models: Params, data: Data) -> Tensor:
    """[J] losses of J models of one client's, alone or under vmap: by a kernel in one call, else by torch.

    Args:
        models: stacks [J, ...].
    """
    J = len(next(iter(models.values())))
    found = _rows_scored(loss, models, data) if kernels_allowed() and has_block(data, models) else None
    if found is None:
        return torch.stack([loss({k: v[j] for k, v in models.items()}, data) for j in range(J)])
    plan, w = found
    parts, names = data.block.parts, list(w)

    def all_clients(_: Tensor, *leaves: Tensor) -> list[Tensor]:
        return [assess.assess(dict(zip(names, leaves, strict=True)), plan.places, plan.task, parts)[0]]

    return on_stacks(all_clients, data.num, *w.values())[0]


def _rows_scored(loss: Loss, models: Params, data: Data) -> tuple[Plan, Params] | None:
    """(plan, stacks [J, ...] of whole models) of a loss that a kernel scores; None: torch does."""
    first = {k: v[0] for k, v in models.items()}
    found = parts_of(loss, ON_DATA, first, next(iter(first.values())))
    if found is None or data.block is None or not _scores(*found, loss, data.block.parts):
        return None
    plan, start = found
    rows = len(next(iter(models.values())))
    return plan, {k: models[k] if k in models else v.expand(rows, *v.shape) for k, v in start.w.items()}


def losses_of_each(loss: Loss, models: ModelBatch, datas: Sequence[Data]) -> Tensor:
    """[C, J] losses of C clients' J models, client by client, each on its client's samples.

    By the kernel where there is one, in one call, else by torch; no stack's rows.
    """
    C, like = len(datas), models.like
    found = parts_of(loss, ON_DATA, models.models[0], like) if kernels_allowed() and models.places else None
    if found is not None and _scores(*found, loss, datas):
        plan, start = found
        more = start.w.keys() - models.layers.keys()
        whole = ModelBatch([start.w | w for w in models.models]) if more else models
        if whole.places is not None:
            return assess.assess_each(whole, plan.places, plan.task, datas)[0]
    each = [data for data in datas for _ in range(len(models) // C)]
    if not like.is_cpu and alike(models.models) and len({len(data) for data in datas}) == 1:
        return _scored_together(loss, models.models, each).view(C, -1)
    return torch.stack([loss(w, data) for w, data in zip(models.models, each, strict=True)]).view(C, -1)


def _scored_together(loss: Loss, models: Sequence[Params], datas: Sequence[Data]) -> Tensor:
    """[P] losses of models, each on its own samples, as many for all: in a few calls, for a GPU."""
    found = []
    for i in range(0, len(models), TOGETHER):
        w = {k: torch.stack([m[k] for m in models[i : i + TOGETHER]]) for k in models[0]}
        samples = zip(*((d.x, d.y, d.mask) for d in datas[i : i + TOGETHER]), strict=True)
        found.append(torch.func.vmap(loss)(w, Data(*map(torch.stack, samples))))
    return torch.cat(found)


def _scores(plan: Plan, start: Training, loss: Loss, datas: Sequence[Data]) -> bool:
    """Whether the kernel that scores knows a loss of these parts, on these samples."""
    model = taken_apart(loss)[1].loss.__self__  # type: ignore[attr-defined]
    plain = not plan.lam and not plan.convs and _scores_as_usual(model) and all(map(len, datas))
    return plain and native.knows(start.w, plan.places, plan.task, datas)


def _scores_as_usual(model: Model) -> bool:
    """Whether loss and right answers are those of `Model` on plain outputs, and no subclass's."""
    return not model.network.softmax_head and type(model).correct is Model.correct and of_model_alone(model)
