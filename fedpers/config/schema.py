"""Plain values, as YAML gives them, to frozen dataclasses, with every mistake found in one go.

A dataclass may have `check() -> list[str]`: problems of values, each headed by the field's name
("tau=0: must be at least 1"); the path of the dataclass is put before it here. One that stands for
several has `variant(values) -> (dataclass, values)`.
"""

import dataclasses
import difflib
import math
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from fedpers.core.bounds import show
from fedpers.core.errors import FedpersError

T = TypeVar("T")
BAD: Any = object()  # what a reader returns after it noted a problem


def build(cls: type[T], values: Any, path: str, problems: list[str]) -> T | None:
    """An instance of the dataclass `cls` from a mapping; None if anything was wrong.

    Whatever is wrong below `path` (unknown or missing keys, types, ranges) is added to `problems`.
    """
    result = _dataclass(cls, values, path, problems)
    return None if result is BAD else result


def _dataclass(cls: Any, values: Any, path: str, problems: list[str]) -> Any:
    if dataclasses.is_dataclass(values) and isinstance(values, cls):
        return values
    if hasattr(cls, "variant"):  # one of several dataclasses, chosen by the values
        try:
            cls, values = cls.variant(values)
        except FedpersError as error:
            problems.append(f"{path}: {error}")
            return BAD
    if not isinstance(values, Mapping):
        problems.append(f"{path}={show(values)}: expected keys and values")
        return BAD
    hints = get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}
    found = len(problems)
    problems += unknown_keys(values, fields, path)
    numbers = {k: f.default for k, f in fields.items() if type(f.default) is int}  # 1 of a float field: 1.0
    given = numbers | {k: v for k, v in values.items() if k in fields}
    read = {k: _read(hints[k], v, join(path, k), problems) for k, v in given.items()}
    good = {k: v for k, v in read.items() if v is not BAD}
    absent = [k for k, f in fields.items() if k not in good and _required(f)]
    problems += [
        f"{join(path, k)} is missing: expected {describe(hints[k])}" for k in absent if k not in values
    ]
    result = _instance(cls, good, absent, path, problems)
    return result if len(problems) == found else BAD


def _required(field: "dataclasses.Field[Any]") -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _instance(
    cls: Any, read: Mapping[str, Any], absent: Sequence[str], path: str, problems: list[str]
) -> Any:
    """Make the instance and run its `check`, also beside fields that are already known as wrong."""
    missing = dict.fromkeys(absent)
    try:
        result = cls(**read, **missing)
        found = [_below(path, text) for text in getattr(result, "check", list)()]
    except FedpersError as error:
        result, found = BAD, str(error).splitlines()
    except (TypeError, ValueError, AttributeError):
        if not absent:
            raise
        return BAD  # it stumbled over what is missing, and that is reported
    problems += [p for p in dict.fromkeys(found) if p not in problems]
    return result


def _below(path: str, text: str) -> str:
    """`text` headed by the path of its field, of which it may already have the last part."""
    parent, _, last = path.rpartition(".")
    if not path or text.startswith(f"{path}."):
        return text
    return join(parent, text) if text.startswith(f"{last}.") else join(path, text)


def unknown_keys(values: Iterable[Any], known: Iterable[str], path: str = "") -> list[str]:
    """A problem for each key that is not known, with a guess and all that is allowed."""
    allowed = sorted(known)
    problems = []
    for key in values:
        if key in allowed:
            continue
        guess = difflib.get_close_matches(str(key), allowed, n=1, cutoff=0.65)  # local: not scale
        hint = f"; did you mean {join(path, guess[0])}?" if guess else "."
        listed = ", ".join(allowed) or "none"
        problems.append(f"{join(path, str(key))} is unknown{hint} Allowed: {listed}")
    return problems


def join(path: str, key: str) -> str:
    """`path.key`, or `key` at the top."""
    return f"{path}.{key}" if path else key


# --- one value -----------------------------------------------------------------------------------


def _read(kind: Any, value: Any, path: str, problems: list[str]) -> Any:
    """`value` as a `kind`, or BAD with a problem noted."""
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, value, path, problems)
    if get_origin(kind) in (Union, types.UnionType):
        return _union(kind, value, path, problems)
    result = _convert(kind, value)
    if result is BAD:
        problems.append(f"{path}={show(value)}: expected {describe(kind)}{_guess(kind, value)}")
    return result


def _union(kind: Any, value: Any, path: str, problems: list[str]) -> Any:
    members = get_args(kind)
    if value is None:
        members = tuple(m for m in members if m is type(None))
    for member in members:
        trial: list[str] = []
        result = _read(member, value, path, trial)
        if not trial and result is not BAD:
            return result
        if dataclasses.is_dataclass(member) and isinstance(value, Mapping):
            problems += trial  # what is wrong inside says more
            return BAD
    problems.append(f"{path}={show(value)}: expected {describe(kind)}{_guess(kind, value)}")
    return BAD


def _convert(kind: Any, value: Any) -> Any:
    origin = get_origin(kind)
    if kind is Any:
        return value
    if origin is Literal:
        return value if any(value == a and type(value) is type(a) for a in get_args(kind)) else BAD
    if origin in (tuple, list, Sequence):
        return _sequence(origin, get_args(kind), value)
    if origin in (dict, Mapping):
        return _mapping(get_args(kind)[1], value)
    return _scalar(kind, value) if kind in SCALARS else value


def _sequence(origin: Any, kinds: tuple[Any, ...], value: Any) -> Any:
    if not isinstance(value, (list, tuple)):
        return BAD
    if origin is not tuple or (len(kinds) == 2 and kinds[1] is Ellipsis):
        kinds = (kinds[0],) * len(value)
    if len(kinds) != len(value):
        return BAD
    items = [_convert(k, v) for k, v in zip(kinds, value, strict=True)]
    if any(i is BAD for i in items):
        return BAD
    return list(items) if origin is list else tuple(items)


def _mapping(kind: Any, value: Any) -> Any:
    if not isinstance(value, Mapping):
        return BAD
    items = {str(k): _convert(kind, v) for k, v in value.items()}
    return BAD if any(v is BAD for v in items.values()) else items


def _scalar(kind: Any, value: Any) -> Any:
    """`value` as a bool, int, float, str, Path or None; BAD where it is none and cannot stand for one."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is int:
        whole = number and (isinstance(value, int) or value.is_integer())  # rounds=1e3
        return int(value) if whole else BAD
    if kind is float:
        return float(value) if number and not math.isnan(value) else BAD
    if kind is str and number:
        return str(value)  # a folder called 2024
    if kind is Path and isinstance(value, str):
        return Path(value)
    return value if isinstance(value, kind) else BAD


SCALARS: dict[Any, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
    Path: "a path",
    type(None): "null",
}


def describe(kind: Any) -> str:
    """What a value of this type is, in words."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(a) for a in args)
    if origin is Literal:
        return f"one of {', '.join(map(show, args))}" if len(args) > 1 else show(args[0])
    if origin in (tuple, list, Sequence):
        if origin is not tuple or args[-1] is Ellipsis:
            return f"a list, each {describe(args[0])}"
        return f"a list of {len(args)}: {', '.join(map(describe, args))}"
    if origin in (dict, Mapping) or dataclasses.is_dataclass(kind):
        return "keys and values"
    return "a value" if kind is Any else SCALARS.get(kind, str(kind))


def _guess(kind: Any, value: Any) -> str:
    kinds = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    options = [str(a) for k in kinds if get_origin(k) is Literal for a in get_args(k)]
    near = difflib.get_close_matches(str(value), options, n=1, cutoff=0.7)
    return f"; did you mean '{near[0]}'?" if near else ""
