"""What each field of an answer may hold, declared once; whoever answers otherwise is refused by field.

Plain values (of headers, of evaluations, of roll calls) are declared as a `Field` each. A body is compared
with an `example`: the tree that the method's own client half gives to the same order, without its numbers.
What a number of a reply means beyond its type a record declares itself, as `ranges = {field: range}`.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from fedpers.core.pytree import tree_map

MOST = 2**31 - 1  # samples that one client can have
WORK = 2**53  # samples that a training can cost; whole numbers are exact up to here
ROUNDING = 1e-5  # a share of one may be above 1 by so much
SIMPLEX = "simplex"  # shares that sum to 1
Range = tuple[float | str | None, float | str | None] | str


@dataclass(frozen=True)
class Field:
    """What one plain value may be."""

    kind: type = int  # exactly: True is no number
    low: float = -math.inf
    high: float = math.inf
    nan: bool = False  # whether there may be no number
    whole: bool = False  # whether it counts something
    among: tuple[Any, ...] | None = None  # the only values
    pattern: re.Pattern[str] | None = None  # of a text
    length: int | None = None  # it is a list of so many such values
    total: int | None = None  # ... with this sum

    def fault(self, name: str, value: Any) -> str | None:
        """What is wrong with a value, or None."""
        if self.among is not None:
            known = any(type(value) is type(v) and value == v for v in self.among)
            return None if known else f"{name} is {show(value)}, expected {_either(self.among)}"
        if self.length is None:
            return self._one(name, value)
        if type(value) is not list or len(value) != self.length:
            return f"{name} is {show(value)}, expected a list of {self.length}"
        wrong = next(filter(None, (self._one(f"{name}[{i}]", v) for i, v in enumerate(value))), None)
        if wrong is None and self.total is not None and sum(value) != self.total:
            return f"{name} sums to {sum(value)}, expected {self.total}"
        return wrong

    def _one(self, name: str, value: Any) -> str | None:
        if type(value) is not self.kind:
            return f"{name} is {show(value)}, expected {_KINDS.get(self.kind, self.kind.__name__)}"
        if isinstance(value, str):
            good = self.pattern is None or self.pattern.fullmatch(value)
            return None if good else f"{name} is {show(value)}, which is no such name"
        return self._number(name, value)

    def _number(self, name: str, value: Any) -> str | None:
        if math.isnan(value):
            return None if self.nan else f"{name} is nan, expected a number; did the model diverge?"
        if self.whole and value != int(value if math.isfinite(value) else 0):
            return f"{name} is {show(value)}, expected a whole number"
        if math.isinf(value) or not self.low <= value <= self.high:
            return f"{name} is {show(value)}, expected {_span(self.low, self.high)}"
        return None


_KINDS = {int: "a whole number", float: "a number", str: "text"}


def show(value: Any) -> str:
    """A value for a message: one line, not too long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _either(values: tuple[Any, ...]) -> str:
    return " or ".join(dict.fromkeys(map(show, values)))


def _span(low: float, high: float) -> str:
    if low > high:
        return "nan"
    if math.isinf(low) and math.isinf(high):
        return "a finite number"
    if math.isinf(high):
        return f"at least {low:g}"
    return f"at most {high:g}" if math.isinf(low) else f"{low:g} to {high:g}"


def misfit(declared: Mapping[str, Field], got: Mapping[str, Any]) -> str | None:
    """What is wrong with plain values by name: one is missing, unknown, or not what is declared."""
    for name, field in declared.items():
        if name not in got:
            return f"{name} is missing"
        if (fault := field.fault(name, got[name])) is not None:
            return fault
    unknown = [name for name in got if name not in declared]
    return (
        f"{show(unknown[0])} is no field of this answer, expected {', '.join(declared)}" if unknown else None
    )


def unfit_columns(columns: Any) -> str | None:
    """What no client can have measured: columns that are no numbers, shares above 1, counts below 0.

    NaN is an honest answer here, and an infinite loss: those of a model that diverged.
    """
    if not isinstance(columns, dict):
        return f"the evaluation is a {type(columns).__name__}, expected columns"
    return next(filter(None, (_unfit(str(name), value) for name, value in columns.items())), None)


def _unfit(name: str, value: Any) -> str | None:
    if name.endswith("_num"):
        return Field(float, 0, MOST, whole=True).fault(name, value)
    if name.removesuffix("_before").endswith("accuracy"):
        return Field(float, 0, 1 + ROUNDING, nan=True).fault(name, value)
    return None if type(value) is float else f"{name} is {show(value)}, expected a number"


# ---- bodies -------------------------------------------------------------------------------------


def example_of(body: Any) -> Any:
    """The tree without its numbers: tensors take no memory, the rest stays."""
    return tree_map(lambda x: torch.empty_like(x, device="meta") if isinstance(x, Tensor) else x, body)


def unlike(example: Any, got: Any, name: str, limits: Mapping[str, float]) -> str | None:
    """What a body has that the example has not: another type, dtype, shape, entry; or a number out of range.

    Args:
        example: of `example_of`.
        got: what a client sent.
        name: of the place, for the message.
        limits: values of the names that `ranges` of records use, such as samples and clients.
    """
    if isinstance(example, Tensor):
        return _unlike_tensor(example, got, name)
    if type(example) is not type(got):
        return f"{name} is a {type(got).__name__}, expected a {type(example).__name__}"
    if isinstance(example, float) and not math.isfinite(got):
        return f"{name} is {got}, expected a finite number"
    pairs: list[tuple[Any, Any, str]] = []
    if isinstance(example, dict):
        if list(example) != list(got):
            return f"{name} has entries {show(list(got))}, expected {show(list(example))}"
        pairs = [(example[k], got[k], f"{name}.{k}") for k in example]
    elif isinstance(example, tuple | list):
        if len(example) != len(got):
            return f"{name} has {len(got)} parts, expected {len(example)}"
        pairs = [(a, b, f"{name}[{i}]") for i, (a, b) in enumerate(zip(example, got, strict=True))]
    elif is_dataclass(example):
        names = [f.name for f in fields(example)]
        pairs = [(getattr(example, n), getattr(got, n), f"{name}.{n}") for n in names]
    fault = next(filter(None, (unlike(*pair, limits) for pair in pairs)), None)
    return fault or _out_of_range(got, name, limits)


def _unlike_tensor(example: Tensor, got: Any, name: str) -> str | None:
    if not isinstance(got, Tensor):
        return f"{name} is a {type(got).__name__}, expected an array"
    if got.dtype != example.dtype:
        return f"{name} has dtype {_plain(got.dtype)}, expected {_plain(example.dtype)}"
    if got.shape != example.shape:
        return f"{name} has shape {tuple(got.shape)}, expected {tuple(example.shape)}"
    return None


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _out_of_range(body: Any, name: str, limits: Mapping[str, float]) -> str | None:
    """What a record's own `ranges` refuse."""
    ranges: Mapping[str, Range] = getattr(type(body), "ranges", {}) if is_dataclass(body) else {}
    for field, declared in ranges.items():
        values = torch.as_tensor(getattr(body, field)).double()
        low, high = (0.0, 1.0) if isinstance(declared, str) else declared
        bounds = _limit(low, limits, -math.inf), _limit(high, limits, math.inf)
        if not bool(((values >= bounds[0] - ROUNDING) & (values <= bounds[1] + ROUNDING)).all()):
            return f"{name}.{field} holds numbers that are not {_span(*bounds)}"
        if declared == SIMPLEX and abs(float(values.sum()) - 1) > ROUNDING * max(values.numel(), 100):
            return f"{name}.{field} sums to {float(values.sum()):g}, expected 1"
    return None


def _limit(bound: float | str | None, limits: Mapping[str, float], otherwise: float) -> float:
    if isinstance(bound, str):
        return limits[bound]
    return otherwise if bound is None else float(bound)
