"""Finds what a module keeps between passes besides its parameters, by running it several times.

One module serves all clients of a process, so whatever a pass leaves behind, the next client would find:
its results would depend on who ran before, and in which process.
"""

import random
from collections import deque
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedpers.core.errors import ConfigError
from fedpers.learning.module import STATISTICS, tracking
from fedpers.learning.starts import seeded

INTERNAL = frozenset(vars(nn.Module()))  # what torch itself keeps in a module
DEEP = 6  # attributes of attributes that are looked at
PLAIN = (bool, int, float, complex, str, bytes, torch.dtype)
NOT_DATA = (type, ModuleType, FunctionType, classmethod, staticmethod, property, nn.Module, nn.Parameter)


def refuse_hidden_state(module: nn.Module, x: Tensor, what: str) -> None:
    """Run the module in both modes on equal and on other inputs; parameters and buffers are put back.

    Args:
        x: [2, ...] inputs that it takes.

    Raises:
        ConfigError: it remembers something, writes into its parameters or its inputs, or draws random
            numbers that no seed of a run reaches.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
            raise ConfigError(_writes(what, f"{name}.weight (max_norm={layer.max_norm})"))
    kept = {k: v.detach().clone() for k, v in _own_tensors(module)}
    states = random.getstate(), _numpy_state()
    try:
        _run_repeatedly(module, x, what, kept)
        _run_far_away(module, x, what, kept)
        drawn = (random.getstate() != states[0], "random"), (_numpy_state() != states[1], "numpy.random")
        for changed, source in drawn:
            if changed:
                raise ConfigError(
                    f"{what}: its forward draws from {source}, which no seed reaches; draw from torch"
                )
    finally:
        _put_back(module, kept)
        module.eval()


def _own_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _put_back(module: nn.Module, kept: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, value in _own_tensors(module):
            value.copy_(kept[name])


def _run_repeatedly(module: nn.Module, x: Tensor, what: str, kept: Mapping[str, Tensor]) -> None:
    """Equal inputs and seeds must give equal outputs, whatever was asked in between."""
    other = torch.cat([x, x[:1]]) if not x.is_floating_point() else torch.cat([3 - 2 * x, 5 * x[:1]])
    before = _pass(module, x, False, what, kept)
    first, seen = _pass(module, x, True, what, kept), _attributes(module)
    again, now = _pass(module, x, True, what, kept), _attributes(module)
    changed = [name for name in now if seen.get(name) != now[name]]
    if changed:
        raise ConfigError(
            f"{what}: each pass changes its '{changed[0]}'; one module serves all clients, and the next one "
            "would find what the last one left: remove it, or compute it from the inputs"
        )
    _pass(module, other, True, what, kept)
    last, after = _pass(module, x, True, what, kept), _pass(module, x, False, what, kept)
    for a, b in ((first, again), (first, last), (before, after)):
        if not torch.allclose(a, b, rtol=1e-5, atol=1e-6 * max(1.0, float(a.abs().max())), equal_nan=True):
            raise ConfigError(
                f"{what}: equal inputs and seeds give other outputs when it is asked again; it remembers "
                "something outside parameters and buffers, or draws random numbers of its own: models must "
                "be functions of their inputs, and draw from torch alone"
            )


def _run_far_away(module: nn.Module, x: Tensor, what: str, kept: dict[str, Tensor]) -> None:
    """Run with large parameters of both signs: a module that clips or normalises them would change them."""
    far = {k: v * (100 * (-1) ** i) for i, (k, v) in enumerate(kept.items()) if v.is_floating_point()}
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.copy_(far.setdefault(name, kept[name]))
    _pass(module, x, True, what, {**kept, **{k: far[k] for k, _ in module.named_parameters()}})


def _pass(module: nn.Module, x: Tensor, trains: bool, what: str, expected: Mapping[str, Tensor]) -> Tensor:
    """The outputs; nothing but BatchNorm's statistics may have changed, and these are put back."""
    module.train(trains)
    given, modes = x.clone(), [m.training for m in module.modules()]
    with seeded(0), torch.set_grad_enabled(trains):
        try:
            outputs = module(x)
        except Exception as error:  # whatever somebody's code raises
            raise ConfigError(
                f"{what}: cannot take {len(x)} samples {'in training mode' if trains else ''}: "
                f"{type(error).__name__}: {error}"
            ) from error
        if not isinstance(outputs, Tensor) or outputs.ndim not in (2, 3) or len(outputs) != len(x):
            raise ConfigError(
                f"{what}: gives {type(outputs).__name__} {'in training mode' if trains else 'for samples'}; "
                f"it must return one tensor ({len(x)}, outputs) in both modes"
            )
        if trains and outputs.requires_grad:
            torch.autograd.grad(outputs.sum(), [p for p in module.parameters() if p.requires_grad],
                                allow_unused=True)  # fmt: skip
    if not torch.equal(x, given):
        raise ConfigError(f"{what}: its forward writes into its inputs; let it work on a copy, x = x.clone()")
    if modes != [m.training for m in module.modules()]:
        raise ConfigError(f"{what}: its forward calls train() or eval(); the mode is set from outside")
    _refuse_writes(module, what, expected)
    return outputs.detach()


def _refuse_writes(module: nn.Module, what: str, expected: Mapping[str, Tensor]) -> None:
    for name, p in module.named_parameters():
        if not torch.equal(p, expected[name]) and not bool(expected[name].isnan().any()):
            raise ConfigError(_writes(what, name))
    own = {f"{p}.{n}".lstrip(".") for p, _ in tracking(module) for n in (*STATISTICS, "num_batches_tracked")}
    for name, value in module.named_buffers():
        if torch.equal(value, expected[name]):
            continue
        if name not in own:
            raise ConfigError(
                f"{what}: training changes its buffer '{name}'; models here have parameters alone, and the "
                "running statistics of BatchNorm: make it a parameter or leave it out"
            )
        value.copy_(expected[name])


def _writes(what: str, name: str) -> str:
    return (
        f"{what}: its forward writes into its own parameters: {name}; they are other clients' too. "
        "Normalise or clip what the layer gives, not what it is made of"
    )


def _numpy_state() -> Any:
    return _mark(np.random.get_state(legacy=True))  # noqa: NPY002  (the host's, which is only read)


def _attributes(module: nn.Module) -> dict[str, Any]:
    """{name: something that differs if the value does} of all attributes that are no parameter or layer."""
    found = {}
    for place, layer in module.named_modules():
        prefix = f"{place}." if place else ""
        for name, value in vars(layer).items():
            if name not in INTERNAL:
                found[prefix + name] = _mark(value)
        for cls in type(layer).__mro__:
            if not cls.__module__.startswith(("torch.", "builtins")):
                own = {n: v for n, v in vars(cls).items() if not n.startswith("__")}
                found |= {f"{cls.__name__}.{n}": _mark(v) for n, v in own.items()}
    return found


def _mark(value: Any, depth: int = 0) -> Any:
    """Something plain that differs if the value does."""
    if value is None or isinstance(value, PLAIN):
        return value
    if isinstance(value, NOT_DATA) or depth > DEEP:
        return type(value).__name__
    if isinstance(value, Mapping):
        return tuple((repr(k), _mark(v, depth + 1)) for k, v in value.items())
    if isinstance(value, list | tuple | set | frozenset | deque):
        return tuple(_mark(v, depth + 1) for v in value)
    state = _state(value)
    if state is not None:
        return state
    if hasattr(value, "__dict__"):
        return _mark(vars(value), depth + 1)
    text = repr(value)
    return type(value).__name__ if " at 0x" in text else text


def _state(value: Any) -> Any:
    """Of arrays and generators of random numbers; None of anything else."""
    if isinstance(value, Tensor):
        return tuple(value.shape), hash(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    if isinstance(value, np.ndarray):
        return value.shape, hash(value.tobytes())
    if isinstance(value, torch.Generator):
        return hash(value.get_state().numpy().tobytes())
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return _mark(value.get_state())
    return hash(value.getstate()) if isinstance(value, random.Random) else None
