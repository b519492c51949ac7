"""Checks that a reply can be aggregated: its structure, its shapes, no NaN or infinite numbers."""

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fedpers.core.pytree import TreeSpec, flatten, leaves, spec_of
from fedpers.core.serialization import leaf_bytes
from fedpers.core.sums import all_finite


class Inspector:
    """Checks the replies of one exchange; equal structures are compared once, rows of one stack together.

    Replies to orders of one type must have the same shapes, those of the first reply without a fault.
    """

    def __init__(self) -> None:
        self._first: dict[type, Any] = {}
        self._seen: set[Any] = set()
        self._finite: dict[int, tuple[Tensor, bool]] = {}
        self._specs: dict[tuple[int, type], tuple[Any, TreeSpec]] = {}
        self._sizes: dict[int, int] = {}  # of a reply in a stack without a fault

    def look(self, order: Any, reply: Any, stack: int = 0) -> tuple[str | None, int]:
        """(what is wrong with a reply, or None; its bytes, 0 if something is); `stack` as in `Answer`."""
        if stack in self._sizes:
            return None, self._sizes[stack]
        flat, structure = flatten(reply)
        said = self._spec(order, type(reply))
        fault = self._compared(order, reply, (type(order), said, spec_of(flat, structure)))
        finite = fault is None and all(map(self._is_finite, flat))
        if fault is None and not finite:
            fault = not_finite(reply)  # which may be another row's
        size = leaf_bytes(flat) if fault is None else 0
        if stack and finite:
            self._sizes[stack] = size
        return fault, size

    def _compared(self, order: Any, reply: Any, key: Any) -> str | None:
        """What is wrong with the shapes of a reply; those of one key are compared once."""
        if key in self._seen:
            return None
        fault = shape_problem(order, reply, self._first.get(type(order)))
        if fault is None:
            self._first.setdefault(type(order), reply)  # a bad first reply sets no example
            self._seen.add(key)
        return fault

    def _spec(self, order: Any, kind: type) -> TreeSpec:
        """Of what an order says of the shapes in a reply of this kind."""
        known = self._specs.get((id(order), kind))
        if known is None:  # the order is kept, so that its id stays its own
            kinds: Any = type(order), kind
            said = [getattr(order, n) for n in _common(*kinds)]
            spec = spec_of(*flatten((said, dict(getattr(order, "expects", {})))))
            known = self._specs[id(order), kind] = (order, spec)
        return known[1]

    def _is_finite(self, leaf: Any) -> bool:
        if not isinstance(leaf, Tensor):
            return not isinstance(leaf, float) or math.isfinite(leaf)
        stack = leaf if leaf._base is None else leaf._base
        known = self._finite.get(id(stack))
        if known is None:  # the tensor is kept, so that its id stays its own
            known = self._finite[id(stack)] = (stack, all_finite(stack))
        return known[1]


@lru_cache(2**10)
def _common(order: type, reply: type) -> tuple[str, ...]:
    """The fields that both records have."""
    if not is_dataclass(order) or not is_dataclass(reply):
        return ()
    theirs = {f.name for f in fields(reply)}
    return tuple(f.name for f in fields(order) if f.name in theirs)


def shape_problem(order: Any, reply: Any, like: Any) -> str | None:
    """What is wrong with a reply's structure, or None.

    A field that the order has too must have the order's shapes, one that the order `expects` those that
    it says, {field: shape}; all replies of an exchange to the
    same kind of order (`like` is the first of them) must have the same shapes. Tuples in a record
    whose class says `ragged = True` may differ in length, and tensors in the first axis where it says
    `free_rows = True`.
    """
    kinds: Any = type(order), type(reply)
    pairs: list[Any] = [(getattr(order, n), getattr(reply, n), n) for n in _common(*kinds)]
    shapes: Mapping[str, tuple[int, ...]] = getattr(order, "expects", {})
    pairs += [(torch.empty(shapes[n]), getattr(reply, n), n) for n in shapes if hasattr(reply, n)]
    if like is not None:
        free = getattr(reply, "ragged", False), getattr(reply, "free_rows", False)
        pairs.append((like, reply, type(reply).__name__, *free))
    return next(filter(None, (_shape_fault(*pair) for pair in pairs)), None)


def _shape_fault(
    expected: Any, got: Any, name: str, ragged: bool = False, free_rows: bool = False
) -> str | None:
    if isinstance(expected, Tensor) and isinstance(got, Tensor):
        if expected.shape[free_rows:] != got.shape[free_rows:]:
            return f"{name} has shape {tuple(got.shape)}, expected {tuple(expected.shape)}"
        return None
    if type(expected) is not type(got):
        return f"{name} is a {type(got).__name__}, expected a {type(expected).__name__}"
    if isinstance(expected, dict):
        if expected.keys() != got.keys():
            return f"{name} has entries {sorted(got)}, expected {sorted(expected)}"
        pairs = [(expected[k], got[k], f"{name}.{k}") for k in expected]
    elif isinstance(expected, (tuple, list)):
        if len(expected) != len(got) and not ragged:
            return f"{name} has {len(got)} parts, expected {len(expected)}"
        both = enumerate(zip(expected, got, strict=False))
        pairs = [(a, b, f"{name}[{i}]") for i, (a, b) in both]
    elif is_dataclass(expected):
        names = [f.name for f in fields(expected)]
        pairs = [(getattr(expected, n), getattr(got, n), n) for n in names]
    else:
        return None
    return next(filter(None, (_shape_fault(a, b, n, ragged, free_rows) for a, b, n in pairs)), None)


def not_finite(reply: Any) -> str | None:
    """What to say if a reply holds NaN or infinite numbers, or None."""
    for leaf in leaves(reply):
        if isinstance(leaf, Tensor) and not all_finite(leaf):
            return "its reply holds NaN or infinite numbers; is the learning rate too large?"
        if isinstance(leaf, float) and not math.isfinite(leaf):
            return f"its reply holds {leaf}"
    return None
