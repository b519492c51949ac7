"""The C kernels for dense networks, compiled on this machine when they are first used.

They compute what autograd does, three to seven times as fast: a client's weights stay in the cache, and
no sample is copied. They are optional: without a C compiler, or with FEDPERS_NATIVE=0, torch is used.
"""

import ctypes
import hashlib
import logging
import math
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedpers.core.data import Data
from fedpers.core.params import Params
from fedpers.learning.kernels.plan import ADAM, GRADIENT, MOMENTUM, Plan, Shape, Training

log = logging.getLogger("fedpers")
SOURCES = [
    Path(__file__).with_name(name)
    for name in (
        *("native.h", "convolve.h", "network.h", "products.h", "softmax.h", "passes.h", "recur.h"),
        *("native.c", "couple.c", "recur.c", "assess.c"),
    )
]
FAILURES = {1: MemoryError("no memory for a minibatch"), 2: IndexError("a label is no class")}
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-shared", "-fPIC")
Kinds = Sequence[Params]  # stacks of the weights, of c̄, of the first and the second moments
Given = tuple[Kinds, Kinds, Sequence[Data], Tensor, Tensor]  # in, out, clients' data, minibatches and weights
TASKS = {"classification": 0, "binary": 1, "regression": 2}


def fits(plan: Plan, given: Training, parts: Sequence[Data]) -> bool:
    """Whether there is a kernel, and all it reads is float32 on the CPU and of the right shape."""
    w, others = given.w, (given.cbar, given.m, given.v)
    needed = [kind for kind, least in ((given.m, MOMENTUM), (given.v, ADAM)) if least <= plan.rule <= ADAM]
    return (
        all(_known(t) for t in (given.ubar, given.step, *given.each, *given.pace.values()))
        and all(_known(t) and t.shape == w[k].shape for kind in others for k, t in kind.items())
        and all(plan.trained <= kind.keys() for kind in needed)
        and all(
            w[f"{name}.weight"].shape[-4:] == (s[3], s[0], s[4], s[4])
            for name, s in zip(plan.layers, plan.convs, strict=False)
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


def train(plan: Plan, given: Training, parts: Sequence[Data], index: Tensor, weight: Tensor) -> Training:
    """Train C clients; `fits` must hold. No tensor of `given` is overwritten.

    Args:
        given: stacks [C, ...] of weights, proximal terms and optimiser states.
        parts: the clients' data.
        index, weight: minibatches [C, S, B], the rows of each step and their weights.

    Returns:
        `given` with the stacks of what was trained; of a GRADIENT, `m` holds it.

    Raises:
        MemoryError: there is none for a minibatch.
        IndexError: a label is no class.
    """
    kinds = (given.w, given.cbar, given.m, given.v)
    none: Params = {}
    made = (none, none, given.w, none) if plan.rule == GRADIENT else (given.w, none, given.m, given.v)
    fresh = [{k: torch.empty(t.shape) for k, t in kind.items() if k in plan.trained} for kind in made]
    step = given.step.clone(memory_format=torch.contiguous_format)
    ubar, each = given.ubar.contiguous(), _rows(*given.each) if given.each else None
    pace = [p if p is None else p.contiguous() for p in map(given.pace.get, plan.layers)]
    call(
        library().fedpers_train,
        plan,
        (kinds, fresh, parts, index, weight),
        plan.rule,
        *map(ctypes.c_float, (plan.lr, plan.decay, plan.momentum, plan.lam)),
        _pointer(ubar),
        _pointer(step),
        _pointers(pace),
        _pointer(each),
        ctypes.c_long(0 if each is None else each.stride(0)),
    )
    return replace(given, w=fresh[0], m=fresh[2], v=fresh[3], step=step)


def call(function: Any, plan: Plan, given: Given, *own: Any) -> None:
    """Call a kernel on networks and minibatches, with arguments of its `own` behind those.

    Raises:
        MemoryError: there is none for a minibatch.
        IndexError: a label is no class.
    """
    kinds, fresh, parts, index, weight = given
    names = plan.places
    tensors = [_rows(kind.get(name)) for kind in kinds for name in names]
    widths = _widths(kinds[0], names[2 * len(plan.convs) :])
    index, weight = _packed(index), _packed(weight.to(torch.float32))
    targets = [_targets(p.y, plan.task) for p in parts]
    failed = function(
        ctypes.c_long(len(plan.convs)),
        _longs([side for shape in plan.convs for side in shape]),
        ctypes.c_long(len(widths) - 1),
        _longs(widths),
        _pointers(tensors),
        _hops(tensors),
        _pointers([kind.get(name) for kind in fresh for name in names]),
        TASKS[plan.task],
        *map(ctypes.c_long, index.shape),
        _pointers([p.x for p in parts]),
        _pointers(targets),
        _pointer(index),
        _longs(index.stride()),
        _pointer(weight),
        _longs(weight.stride()),
        *own,
    )
    if failed:
        raise FAILURES[failed]


def assess(w: Params, names: Sequence[str], task: str, parts: Sequence[Data]) -> tuple[Tensor, Tensor]:
    """Each client's mean loss and accuracy on all its samples, [C] and [C]; `knows` must hold.

    Args:
        w: stacks [C, ...] of parameters.
        names: each layer's weight and bias in turn, whether it has one or not.
        parts: the clients' data.

    Raises:
        IndexError: a label is no class.
    """
    tensors = [_rows(w.get(name)) for name in names]
    first = [None if t is None else (t.data_ptr(), 4 * t.stride(0)) for t in tensors]
    places = [at and at[0] + c * at[1] for c in range(len(parts)) for at in first]
    return _assess(places, _widths(w, names), task, parts)


def assess_each(
    models: Sequence[Params], names: Sequence[str], task: str, data: Data
) -> tuple[Tensor, Tensor]:
    """As `assess`, of several models of the same shapes on the samples of one client."""
    whole = [{k: v.contiguous() for k, v in w.items()} for w in models]
    places = [w[name].data_ptr() if name in w else None for w in whole for name in names]
    return _assess(places, _widths(models[0], names), task, [data], len(models))


def _assess(
    places: Sequence[int | None], widths: Sequence[int], task: str, parts: Sequence[Data], times: int = 1
) -> tuple[Tensor, Tensor]:
    """Of models whose parameters are at `places`, model by model; `times` on the same data."""
    targets, found = [_targets(p.y, task) for p in parts], torch.empty(len(parts) * times, 2)
    failed = library().fedpers_assess(
        ctypes.c_long(len(widths) - 1),
        _longs(widths),
        (ctypes.c_void_p * len(places))(*places),
        TASKS[task],
        ctypes.c_long(len(found)),
        _longs([len(p) for p in parts] * times),
        _pointers([p.x for p in parts] * times),
        _pointers(targets * times),
        _pointer(found),
    )
    if failed:
        raise FAILURES[failed]
    losses, right = found.unbind(1)
    return losses, right


def _targets(y: Tensor, task: str) -> Tensor:
    return y.to(torch.int64 if task == "classification" else torch.float32)


def _rows(stack: Tensor | None) -> Tensor | None:
    """A stack whose rows are contiguous; an expanded one is not copied."""
    return stack if stack is None or stack[0].is_contiguous() else stack.contiguous()


def _packed(batches: Tensor) -> Tensor:
    """Minibatches [C, S, B] with contiguous last dimension; an expanded schedule is not copied."""
    return batches if batches.stride(2) == 1 else batches.contiguous()


def _pointer(t: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if t is None else t.data_ptr())


def _pointers(tensors: Sequence[Tensor | None]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*(None if t is None else t.data_ptr() for t in tensors))


def _hops(stacks: Sequence[Tensor | None]) -> Any:
    """Floats from one client's row to the next; 0 where all share one, or there is none."""
    return _longs([0 if t is None else t.stride(0) for t in stacks])


def _longs(values: Sequence[int]) -> Any:
    return (ctypes.c_long * len(values))(*values)


@lru_cache(maxsize=1)
def library() -> Any:
    """The compiled kernels; None without a compiler, or if they are switched off."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if os.environ.get("FEDPERS_NATIVE", "1") == "0" or compiler is None:
        return None
    try:
        return ctypes.CDLL(str(_compiled(compiler)))
    except (OSError, subprocess.CalledProcessError) as error:
        log.info("the C kernels could not be compiled, torch is used instead: %s", error)
        return None


def _compiled(compiler: str) -> Path:
    """The library of this source for this processor; compiled in a temporary folder, then renamed."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    text = "".join(s.read_text() for s in SOURCES) + flags + platform.machine() + " ".join(FLAGS)
    name = f"native-{hashlib.sha256(text.encode()).hexdigest()[:16]}.so"
    root = os.environ.get("FEDPERS_CACHE") or Path.home() / ".cache" / "fedpers"
    path = Path(root).expanduser() / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            built = Path(folder) / name
            code = [str(s) for s in SOURCES if s.suffix == ".c"]
            command = [compiler, *FLAGS, *code, "-o", str(built), "-lm"]
            subprocess.run(command, check=True, capture_output=True)
            built.rename(path)
    return path
