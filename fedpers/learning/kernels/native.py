"""The C kernels for dense networks, from Python.

They compute what autograd does, three to seven times as fast: a client's weights stay in the cache, and
no sample is copied.
"""

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedpers.core.compiled import addresses, hops, longs, place, pointer, pointers, with_whole_rows
from fedpers.core.data import Data
from fedpers.core.items import Items
from fedpers.core.params import Params
from fedpers.core.pytree import changed
from fedpers.learning.kernels.library import library
from fedpers.learning.kernels.plan import ADAM, GRADIENT, MOMENTUM, Plan, Shape, Training

FAILURES = {1: MemoryError("no memory for a minibatch"), 2: IndexError("a label is no class")}
FAILURES |= {3: IndexError("a part has a row that is no sample")}
Kinds = Sequence[Params]  # stacks of the weights, of c̄, of the first and the second moments
Given = tuple[Kinds, Kinds, Sequence[Data], Tensor, Tensor]  # in, out, clients' data, minibatches and weights
TASKS = {"classification": 0, "binary": 1, "regression": 2}


def fits(plan: Plan, given: Training, parts: Sequence[Data]) -> bool:
    """Whether there is a kernel, and all it reads is float32 on the CPU and of the right shape."""
    w, others = given.w, (given.cbar, given.m, given.v)
    needed = [kind for kind, least in ((given.m, MOMENTUM), (given.v, ADAM)) if least <= plan.rule <= ADAM]
    return (
        all(_known(t) for t in (*given.ubar, *given.step, *given.each, *given.extra, *given.pace.values()))
        and all(_known(t) and t.shape == w[k].shape for kind in others for k, t in kind.items())
        and all(plan.trained <= kind.keys() for kind in needed)
        and all(
            w[f"{name}.weight"].shape[-4:] == (s[3], s[0], s[4], s[4])
            for name, s in zip(plan.layers, plan.convs, strict=False)
        )
        and all(
            _known(w[k]) and w[k].shape == w[k.removeprefix(plan.extra.prefix)].shape
            for k in plan.second
            if k in w
        )
        and knows(w, plan.places, plan.task, parts, plan.convs)
    )


def knows(
    w: Params, names: Sequence[str], task: str, parts: Sequence[Data], convs: Sequence[Shape] = ()
) -> bool:
    """Whether there is a kernel for parameters and samples of these types and shapes.

    Args:
        w: parameters, one client's or stacks [C, ...].
        names: each layer's weight and bias in turn, whether it has one or not.
        convs: the shapes of the first layers, if they are convolutions.
    """
    names = names[2 * len(convs) :]
    widths = _widths(w, names)
    numbers = math.prod(convs[0][:3]) if convs else widths[0]
    targets = widths[-1] if task == "regression" else 1
    labels = (torch.int64,) if task == "classification" else (torch.int64, torch.float32)
    rows = [(numbers, torch.float32, targets, label) for label in labels]
    return (
        all(_known(t) for t in w.values())
        and all(w[name].shape[-1] == n for name, n in zip(names[::2], widths, strict=False))
        and all(
            name not in w or w[name].shape[-1] == n for name, n in zip(names[1::2], widths[1:], strict=True)
        )
        and all(p.rows in rows for p in parts)  # the kernel checks no bounds
        and library() is not None
    )


def _widths(w: Params, names: Sequence[str]) -> list[int]:
    """The widths of the inputs and of each layer's outputs."""
    return [w[names[0]].shape[-1], *(w[name].shape[-2] for name in names[::2])]


def _known(t: Tensor) -> bool:
    return t.is_cpu and t.dtype == torch.float32


def train(
    plan: Plan, given: Training, parts: Sequence[Data], index: Tensor, weight: Tensor, in_turn: bool = False
) -> Training:
    """Train C clients; `fits` must hold. No tensor of `given` is overwritten.

    Args:
        given: stacks [C, ...] of weights, proximal terms and optimiser states.
        parts: the clients' data.
        index, weight: minibatches [C, S, B], the rows of each step and their weights.
        in_turn: all C are one client, who goes on from where it ended, `v` being a BLEND's; not for ADAM.

    Returns:
        `given` with the stacks of what was trained, and of what the plan keeps; of a GRADIENT, `m` holds it.

    Raises:
        MemoryError: there is none for a minibatch.
        IndexError: a label is no class.
    """
    kinds: Kinds = (given.w, given.cbar, given.m, given.v)
    none: Params = {}
    moments = (given.m, none if in_turn else given.v) if plan.keeps else (none, none)
    made = (none, none, given.w, none) if plan.rule == GRADIENT else (given.w, none, *moments)
    fresh: Kinds = [{k: torch.empty(t.shape) for k, t in kind.items() if k in plan.trained} for kind in made]
    if in_turn:
        kinds, fresh = _in_turn(kinds, fresh)
    step = tuple([s.clone(memory_format=torch.contiguous_format) for s in given.step])
    others = (given.ubar, given.each, given.extra[:1], given.extra[1:])
    whole = [list(map(with_whole_rows, t)) for t in others]  # copies among them live until the kernel has run
    ubar, each, a, b = map(place, whole)
    pace = [p if p is None else p.contiguous() for p in map(given.pace.get, plan.layers)]
    call(
        library().fedpers_train,
        plan,
        (kinds, fresh, parts, index, weight),
        plan.rule,
        *map(ctypes.c_float, (plan.lr, plan.decay, plan.momentum, plan.lam)),
        *ubar,
        pointer(*step),
        pointers(pace),
        *each,
        plan.extra.kind,
        *map(ctypes.c_float, (plan.extra.weight, plan.extra.tau)),
        *(*a, *b),
    )
    return changed(given, w=fresh[0], m=fresh[2], v=fresh[3], step=step)


def _in_turn(kinds: Kinds, fresh: Kinds) -> tuple[list[Params], list[Params]]:
    """(kinds, fresh) of one training after the other: each reads what the one before it made.

    The kernel goes client by client, and writes what it made of one before it reads the next.
    """
    before, after = [dict(kind) for kind in kinds], [dict(kind) for kind in fresh]
    for was, made in zip(before, after, strict=True):
        for k, rows in made.items():
            chain = torch.empty(len(rows) + 1, *rows.shape[1:])
            chain[0] = was[k][0]
            was[k], made[k] = chain[:-1], chain[1:]
    return before, after


def call(function: Any, plan: Plan, given: Given, *own: Any) -> None:
    """Call a kernel on networks and minibatches, with arguments of its `own` behind those.

    Raises:
        MemoryError: there is none for a minibatch.
        IndexError: a label is no class.
    """
    kinds, fresh, parts, index, weight = given
    names = plan.places + plan.second
    tensors = [_rows(kind.get(name)) for kind in kinds for name in names]
    widths = _widths(kinds[0], plan.places[2 * len(plan.convs) :])
    index, weight = _packed(index), _packed(weight if weight.dtype is torch.float32 else weight.float())
    targets = [_targets(p.y, plan.task) for p in parts]
    failed = function(
        ctypes.c_long(len(plan.convs)),
        longs([side for shape in plan.convs for side in shape]),
        ctypes.c_long(len(widths) - 1),
        longs(widths),
        pointers(tensors),
        hops(tensors),
        pointers([kind.get(name) for kind in fresh for name in names]),
        TASKS[plan.task],
        *map(ctypes.c_long, index.shape),
        pointers([p.x for p in parts]),
        pointers(targets),
        pointer(index),
        longs(index.stride()),
        pointer(weight),
        longs(weight.stride()),
        *own,
    )
    if failed:
        raise FAILURES[failed]


def assess(w: Params, names: Sequence[str], task: str, parts: Sequence[Data]) -> tuple[Tensor, Tensor]:
    """Mean losses and accuracies of C clients' J models on all their samples, [C, J] each; `knows` must hold.

    Args:
        w: stacks [C, J, ...] of parameters.
        names, parts: each layer's weight and bias in turn, whether it has one or not; the clients' data.
    """
    C, J = next(iter(w.values())).shape[:2]
    rows = [t if t is None or t[0, 0].is_contiguous() else t.contiguous() for t in map(w.get, names)]
    first = [None if t is None else (t.data_ptr(), 4 * t.stride(0), 4 * t.stride(1)) for t in rows]
    places = [at and at[0] + c * at[1] + j * at[2] for c in range(C) for j in range(J) for at in first]
    found = _assess(places, _widths(w, names), task, parts, [c for c in range(C) for _ in range(J)])
    return found.float().view(C, J, 2).unbind(2)  # type: ignore[return-value]


def assess_each(
    models: Items, names: Sequence[str], task: str, parts: Sequence[Data]
) -> tuple[Tensor, Tensor]:
    """As `assess`, [C, J] each, of models that lie anywhere, client by client; they must have `places`."""
    assert models.places is not None
    C, J = len(parts), len(models) // len(parts)
    none, on = [None] * len(models), [c for c in range(C) for _ in range(J)]
    rows = zip(*[models.places.get(name, none) for name in names], strict=True)
    places = [at for row in rows for at in row]
    found = _assess(places, _widths(models.models[0], names), task, parts, on)
    return found.float().view(C, J, 2).unbind(2)  # type: ignore[return-value]


def mean_losses(models: Sequence[Params], names: Sequence[str], task: str, parts: Sequence[Data]) -> Tensor:
    """[C, J] float64 mean losses of C clients' samples under J models, as `sample_losses`."""
    shared, pairs, places = _pairs(models, names, parts)
    found = _assess(places, _widths(models[0], names), task, parts, [c for c, _ in pairs])[:, 0]
    return found.view(len(models), -1).T if shared else found.view(len(parts), -1)


def sample_losses(
    models: Sequence[Params], names: Sequence[str], task: str, parts: Sequence[Data], size: int
) -> Tensor:
    """[C, J, size] the loss of each sample of C clients under J models; 0 beyond a client's samples.

    Args:
        models: stacks [C, ...] of the parameters of each; what all clients share is packed once.
        names, parts: as in `assess`.

    Raises:
        IndexError: a label is no class.
    """
    _, pairs, places = _pairs(models, names, parts)
    found = torch.zeros(len(parts), len(models), size)
    where = [found.data_ptr() + 4 * size * (c * len(models) + j) for c, j in pairs]
    _assess(places, _widths(models[0], names), task, parts, [c for c, _ in pairs], where)
    return found


def _pairs(
    models: Sequence[Params], names: Sequence[str], parts: Sequence[Data]
) -> tuple[bool, list[tuple[int, int]], list[int | None]]:
    """(whether all clients share each model, pairs of client and model, where the parameters of each lie).

    Client by client each reads its samples once; model by model, if they are shared, each is packed once.
    """
    rows = [[_rows(w.get(name)) for name in names] for w in models]
    C, J = range(len(parts)), range(len(models))
    shared = all(t is None or not t.stride(0) for row in rows for t in row)
    pairs = [(c, j) for j in J for c in C] if shared else [(c, j) for c in C for j in J]
    firsts = [[None if t is None else (t.data_ptr(), 4 * t.stride(0)) for t in row] for row in rows]
    return shared, pairs, [at and at[0] + c * at[1] for c, j in pairs for at in firsts[j]]


def _assess(
    places: Sequence[int | None],
    widths: Sequence[int],
    task: str,
    parts: Sequence[Data],
    on: Sequence[int],
    each: Sequence[int] | None = None,
) -> Tensor:
    """[n, 2] float64 mean loss and accuracy of models whose parameters are at `places`, model by model.

    Args:
        on: the number of the part whose samples each model is to predict.
        each: the places where the losses of these samples go.
    """
    found = torch.empty(len(on), 2, dtype=torch.float64)
    whole = [(getattr(p, "of", p), getattr(p, "chosen", None)) for p in parts]  # of a Part no row is copied
    targets = [_targets(data.y, task) for data, _ in whole]
    sizes = [n for p, (data, _) in zip(parts, whole, strict=True) for n in (len(p), len(data))]
    at = [t.data_ptr() for (data, _), y in zip(whole, targets, strict=True) for t in (data.x, y)]
    failed = library().fedpers_assess(
        ctypes.c_long(len(widths) - 1),
        longs(widths),
        addresses(places),
        TASKS[task],
        ctypes.c_long(len(on)),
        longs(on),
        longs(sizes),
        addresses(at),
        pointers([chosen for _, chosen in whole]),
        pointer(found),
        None if each is None else addresses(each),
    )
    if failed:
        raise FAILURES[failed]
    return found


def _targets(y: Tensor, task: str) -> Tensor:
    kind = torch.int64 if task == "classification" else torch.float32
    return y if y.dtype is kind else y.to(kind)


def _rows(stack: Tensor | None) -> Tensor | None:
    return None if stack is None else with_whole_rows(stack)


def _packed(batches: Tensor) -> Tensor:
    """Minibatches [C, S, B] with contiguous last dimension; an expanded schedule is not copied."""
    return batches if batches.stride(2) == 1 else batches.contiguous()
