"""Records: frozen dataclasses of tensors. States, orders and replies are records."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar, dataclass_transform

import torch.utils._pytree as pytree
from torch import Tensor

from fedpers.core.errors import FedpersError

T = TypeVar("T")
RECORDS: dict[str, type] = {}  # what may be read back from a message or a file
_NAMES: dict[type, str] = {}
_FIELDS: dict[type, tuple[str, ...]] = {}


@dataclass_transform(frozen_default=True)
def record(named: Any) -> Any:
    """Make a class a frozen dataclass, a pytree (for stacking) and a known type on the wire.

    Used as `@record` or `@record("family.Name")`. Messages and files hold the name, so it must outlive
    every move of the class; without one it is the file's and the class's, such as "fedsoft.Train".
    Fields hold tensors, dicts of tensors, tuples, other records, None or plain numbers and strings.

    Raises:
        FedpersError: another class has the name.
    """
    if isinstance(named, str):
        return lambda cls: _make_record(cls, named)
    return _make_record(named, f"{named.__module__.rpartition('.')[2]}.{named.__qualname__}")


def _make_record(cls: type[T], name: str) -> type[T]:
    data = dataclass(frozen=True)(cls)
    fields_of = [f.name for f in fields(data)]  # type: ignore[arg-type]
    known = RECORDS.get(name)
    if known is None:
        pytree.register_pytree_node(
            data,
            lambda value: ([getattr(value, n) for n in fields_of], None),
            lambda children, _: data(*children),
            serialized_type_name=name,
        )
    elif _file_of(known) != _file_of(data):  # a file that is imported twice is no conflict
        raise FedpersError(
            f"two records are called {name}: in {known.__module__} and in "
            f'{data.__module__}; name one of them: @record("package.Name")'
        )
    RECORDS[name], _NAMES[data], _FIELDS[data] = data, name, tuple(fields_of)
    return data


def _file_of(cls: type) -> str:
    return str(getattr(sys.modules.get(cls.__module__), "__file__", cls.__module__))


def record_name(cls: type) -> str | None:
    """The name of a record type on the wire; None if it is no record."""
    return _NAMES.get(cls)


def leaves(tree: Any) -> list[Any]:
    """All leaves of a record, dict or tuple, in a fixed order."""
    return pytree.tree_leaves(tree)


LEAF = None  # the structure of a leaf


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """(leaves, structure) of a tree of records, dicts and tuples; several times faster than pytree.

    The structure is hashable; everything that is no record, dict, tuple or list is a leaf.
    """
    found: list[Any] = []
    return found, _walk(tree, found)


def _walk(tree: Any, found: list[Any]) -> Any:
    kind = type(tree)
    names, parts = None, tree
    if kind is dict:
        names, parts = tuple(tree), tree.values()
    elif (fields := _FIELDS.get(kind)) is not None:
        names, parts = fields, [getattr(tree, n) for n in fields]
    elif kind is not tuple and kind is not list:
        found.append(tree)
        return LEAF
    inner: list[Any] = []
    for part in parts:
        if type(part) is Tensor:  # no call for what is there most
            found.append(part)
            inner.append(LEAF)
        else:
            inner.append(_walk(part, found))
    return kind, names, tuple(inner)


def rebuild(structure: Any, leaves: Sequence[Any]) -> Any:
    """The tree with this structure and these leaves."""
    return _build(structure, iter(leaves))


def _build(structure: Any, values: Iterator[Any]) -> Any:
    if structure is LEAF:
        return next(values)
    kind, names, inner = structure
    if names is None:
        return kind([next(values) if s is LEAF else _build(s, values) for s in inner])
    made: Any = {} if kind is dict else object.__new__(kind)
    named = made if kind is dict else made.__dict__  # a frozen dataclass sets its fields one by one
    for name, part in zip(names, inner):  # noqa: B905  (as long as each other, asked often)
        named[name] = next(values) if part is LEAF else _build(part, values)
    return made


def own_leaves(state: Any) -> Any:
    """The state, with rows of larger tensors copied, so that those can go."""
    flat, structure = flatten(state)
    return rebuild(structure, [_own(x) for x in flat])


def _own(leaf: Any) -> Any:
    if isinstance(leaf, Tensor) and leaf.untyped_storage().nbytes() > leaf.nbytes:
        return leaf.clone()
    return leaf
