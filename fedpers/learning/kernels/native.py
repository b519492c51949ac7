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

from fedpers.core.compiled import hops, ints, longs, place, pointer, pointers, with_whole_rows
from fedpers.core.data import Data
from fedpers.core.params import Params
from fedpers.core.witness import KERNEL, took
from fedpers.learning.kernels.library import library
from fedpers.learning.kernels.plan import Plan, Shape, Training
from fedpers.learning.kernels.steps import compiled

FAILURES = {1: MemoryError("no memory for a minibatch"), 2: IndexError("a label is no class")}
FAILURES |= {3: IndexError("a part has a row that is no sample")}
Vector = tuple[
    int, Params, Params
]  # what becomes of a vector of parameters, stacks where it comes from and goes
Given = tuple[Sequence[Vector], Sequence[Data], Tensor, Tensor]  # clients' data, minibatches and weights
TASKS = {"classification": 0, "binary": 1, "regression": 2}


def fits(plan: Plan, given: Training, parts: Sequence[Data]) -> bool:
    """Whether there is a kernel, and all it reads is float32 on the CPU and of the right shape."""
    w, *others = given.vectors.values()
    numbers = (*given.own.values(), *given.step, *given.each, *given.extra, *given.gradient_scale.values())
    return (
        all(map(_known, numbers))
        and all(_known(v[k]) and v[k].shape == w[k].shape for v in others for k in plan.trained & v.keys())
        and all(plan.trained <= v.keys() for v in others)
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
    widths = widths_of(w, names)
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


def widths_of(w: Params, names: Sequence[str]) -> list[int]:
    """The widths of the inputs and of each layer's outputs."""
    return [w[names[0]].shape[-1], *(w[name].shape[-2] for name in names[::2])]


def _known(t: Tensor) -> bool:
    return t.is_cpu and t.dtype == torch.float32


def only_wanted(plan: Plan, given: Training) -> Training:
    """`given` as `train` would leave it without a step."""
    found = {name: {k: given.vectors[name][k] for k in plan.moving} for name in plan.wanted}
    return Training(found, {}, given.step)


def train(
    plan: Plan,
    given: Training,
    parts: Sequence[Data],
    index: Tensor,
    weight: Tensor,
    others: Tensor | None = None,
    *,
    always: bool = False,
    then: str = "",
) -> Training:
    """Let C clients take the plan's steps; `fits` must hold. No tensor of `given` is overwritten.

    Args:
        given: stacks [C, ...].
        parts: the clients' data.
        index, weight: minibatches [C, S, B], the rows of each step and their weights.
        others: [C, S, B] the rows of the other samples, of the same weights, that a program may look at.
        always: also steps whose weights are all 0.
        then: the last step is the gradient in all parameters, under this name.

    Returns:
        The stacks of the vectors that are wanted, of what is trained, and the steps made.

    Raises:
        MemoryError: there is none for a minibatch.
        IndexError: a label is no class.
    """
    wanted = (*plan.wanted, then) if then else plan.wanted
    steps = compiled(plan.steps, tuple(given.vectors), wanted, then)
    came, fresh = _from_and_to(plan, given, steps.vectors, len(parts), then)
    done = dict(zip(steps.vectors, fresh, strict=True))
    step = tuple([s.clone(memory_format=torch.contiguous_format) for s in given.step])
    rows = ([given.own[k] for k in steps.numbers], given.each, given.extra[:1], given.extra[1:])
    numbers, *whole = [list(map(with_whole_rows, t)) for t in rows]  # copies live until the kernel has run
    each, a, b = map(place, whole)
    gradient_scale = [p if p is None else p.contiguous() for p in map(given.gradient_scale.get, plan.layers)]
    others = others if others is None else _packed(others)
    call(
        library().fedpers_steps,
        plan,
        (list(zip(steps.kinds, came, fresh, strict=True)), parts, index, weight),
        ctypes.create_string_buffer(steps.code, len(steps.code)),
        ctypes.c_long(steps.lines),
        ctypes.c_long(steps.ahead),
        ctypes.c_long(steps.then),
        ctypes.c_float(plan.lr),
        pointers(numbers),
        hops(numbers),
        pointer(others),
        None if others is None else longs(others.stride()),
        pointer(*step),
        pointers(gradient_scale),
        *each,
        plan.extra.kind,
        *map(ctypes.c_float, (plan.extra.weight, plan.extra.tau)),
        *(*a, *b),
        int(always),
    )
    return Training({k: done[k] for k in wanted}, {}, step)


def _from_and_to(
    plan: Plan, given: Training, names: Sequence[str], C: int, whole: str
) -> tuple[list[Params], list[Params]]:
    """Stacks where each vector comes from, and where it goes if it is wanted: what moves, or the whole."""
    came = [given.vectors.get(name, {}) for name in names]
    kept = {name: plan.names if name == whole else plan.moving for name in (*plan.wanted, whole)}
    fresh = [{k: torch.empty(C, *given.w[k].shape[1:]) for k in kept.get(n, ())} for n in names]
    return came, fresh


def call(function: Any, plan: Plan, given: Given, *own: Any) -> None:
    """Call a kernel on networks and minibatches, with arguments of its `own` behind those.

    Raises:
        MemoryError: there is none for a minibatch.
        IndexError: a label is no class.
    """
    vectors, parts, index, weight = given
    names = plan.places + plan.second
    tensors = [in_rows(came.get(name)) for _, came, _ in vectors for name in names]
    widths = widths_of(vectors[0][1], plan.places[2 * len(plan.convs) :])
    index, weight = _packed(index), _packed(weight if weight.dtype is torch.float32 else weight.float())
    targets = [targets_of(p.y, plan.task) for p in parts]
    took(KERNEL)
    failed = function(
        ctypes.c_long(len(plan.convs)),
        longs([side for shape in plan.convs for side in shape]),
        ctypes.c_long(len(widths) - 1),
        longs(widths),
        ctypes.c_long(len(vectors)),
        ints([kind for kind, _, _ in vectors]),
        ints([name in plan.trained for name in names]),
        pointers(tensors),
        hops(tensors),
        pointers([fresh.get(name) for _, _, fresh in vectors for name in names]),
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


def targets_of(y: Tensor, task: str) -> Tensor:
    """Labels or values, in the type that C reads."""
    kind = torch.int64 if task == "classification" else torch.float32
    return y if y.dtype is kind else y.to(kind)


def in_rows(stack: Tensor | None) -> Tensor | None:
    """A stack whose rows are contiguous, if there is one."""
    return None if stack is None else with_whole_rows(stack)


def _packed(batches: Tensor) -> Tensor:
    """Minibatches [C, S, B] with contiguous last dimension; an expanded schedule is not copied."""
    return batches if batches.stride(2) == 1 else batches.contiguous()
