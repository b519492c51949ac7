"""Records: frozen dataclasses of tensors. States, orders and replies are records."""

import math
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any, TypeVar, dataclass_transform

import torch
import torch.utils._pytree as pytree  # torch.func differentiates with respect to records
from torch import Tensor

from fedpers.core.errors import FedpersError

T = TypeVar("T")
RECORDS: dict[str, type] = {}  # record types that may be read from a message or a file
_NAMES: dict[type, str] = {}
_FIELDS: dict[type, tuple[str, ...]] = {}


@dataclass_transform(frozen_default=True)
def record(named: Any) -> Any:
    """Make a class a frozen dataclass, a pytree (for stacking) and a known type on the wire.

    Used as `@record` or `@record("family.Name")`. Messages and files hold the name, so it must stay when the
    class moves to another file; without one it is the file's and the class's, such as "fedsoft.Train".
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


LEAF = None  # the structure of a leaf
EMPTY = (dict, (), ())  # the structure of {}, which many records have where a method keeps nothing


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """(leaves, structure) of a tree of records, dicts, tuples and lists; anything else is a leaf.

    The structure is hashable. This is several times faster than torch's pytree.
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
        if type(part) is Tensor:  # the most frequent case, without a function call
            found.append(part)
            inner.append(LEAF)
        else:
            inner.append(EMPTY if type(part) is dict and not part else _walk(part, found))
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
        if part is LEAF:
            named[name] = next(values)
        else:
            named[name] = {} if part == EMPTY else _build(part, values)
    return made


def leaves(tree: Any) -> list[Any]:
    """All leaves of a tree, in a fixed order."""
    return flatten(tree)[0]


def tree_map(f: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """The tree with leaves f(leaf, *leaves of `others`), which must have the same structure (ValueError)."""
    (flat, structure), *more = map(flatten, (tree, *others))
    if any(form != structure for _, form in more):
        raise ValueError(f"trees are unlike: {structure} beside {[form for _, form in more]}")
    return rebuild(structure, list(map(f, flat, *(values for values, _ in more))))


def own_leaves(tree: Any) -> Any:
    """The tree; tensors that are views of larger ones are copied, so that the larger ones can be freed."""
    return tree_map(own, tree)


def own(leaf: Any) -> Any:
    """The leaf, copied if it is a view of a larger tensor."""
    if isinstance(leaf, Tensor) and leaf.untyped_storage().nbytes() > leaf.nbytes:
        return leaf.clone()
    return leaf


def neighbours(column: Sequence[Tensor]) -> Tensor | None:
    """The stack [C, ...] whose consecutive rows these tensors are, not copied; None if there is none."""
    first, whole = column[0], column[0]._base
    hop, size = first.numel(), first.nbytes
    if whole is None or not hop:
        return None
    start, end = first.data_ptr(), first.storage_offset() + len(column) * hop
    if end * first.itemsize > first.untyped_storage().nbytes():
        return None
    if [t.data_ptr() for t in column] != list(range(start, start + len(column) * size, size)):
        return None
    if not all([t.is_contiguous() for t in column]):
        return None
    return first.as_strided((len(column), *first.shape), (hop, *first.stride()))


def in_place_of(tree: Any, other: Any, row: int, count: int) -> Any:
    """The tree, moved to one that nobody needs if that is this row of stacks of `count`; else as it is."""
    (flat, structure), (goal, form) = flatten(tree), flatten(other)
    if structure != form or not all(_is_row(to, x, row, count) for x, to in zip(flat, goal, strict=True)):
        return tree
    for x, to in zip(flat, goal, strict=True):
        to.copy_(x)
    return other


def _is_row(t: Any, like: Any, row: int, count: int) -> bool:
    if not isinstance(t, Tensor) or not isinstance(like, Tensor) or t._base is None:
        return False
    alike = (t.shape, t.dtype, t.device) == (like.shape, like.dtype, like.device)
    return alike and t._base.numel() == count * t.numel() and t.storage_offset() == row * t.numel()


# ---- trees that are alike ------------------------------------------------------------------------


class TreeSpec:
    """What trees that can be stacked have in common; hashable, equal by value.

    `leaves` has for each leaf (shape, dtype) of a tensor, `float` for a number that may differ from
    tree to tree, or (type, value) of a constant.
    """

    def __init__(self, structure: Any, leaves: tuple[Any, ...]) -> None:
        self.structure, self.leaves = structure, leaves
        self._hash = hash((structure, leaves))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: Any) -> bool:
        return self is other or (self.structure, self.leaves) == (other.structure, other.leaves)

    def __reduce__(self) -> Any:
        return _spec, (self.structure, self.leaves)

    @cached_property
    def tensors(self) -> list[tuple[torch.Size, torch.dtype]]:
        """(shape, dtype) of each tensor."""
        return [x for x in self.leaves if x is not float and isinstance(x[0], torch.Size)]

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(num_bytes(*t) for t in self.tensors)

    @cached_property
    def max_dim(self) -> int:
        """The largest number of dimensions of a tensor."""
        return max((len(shape) for shape, _ in self.tensors), default=0)

    def columns(self, trees: Sequence[Any]) -> list[list[Tensor]]:
        """A list for each tensor of this spec's trees: [tensor][tree]. Quicker than to flatten each tree."""
        found: list[list[Any]] = []
        _split(self.structure, list(trees), found)
        return [c for c, x in zip(found, self.leaves, strict=True) if x is not float and not _is_constant(x)]

    def unstack(self, columns: Iterable[Sequence[Any]], count: int) -> list[Any]:
        """`count` trees, from a column of `count` values for each leaf that is no constant."""
        given = iter(columns)
        whole = ([x[1]] * count if _is_constant(x) else next(given) for x in self.leaves)
        return _join(self.structure, whole, count)


def _join(structure: Any, columns: Iterator[Sequence[Any]], count: int) -> list[Any]:
    """`count` trees from a column for each leaf, node by node: quicker than tree by tree."""
    if structure is LEAF:
        return list(next(columns))
    kind, names, inner = structure
    parts = [_join(part, columns, count) for part in inner]
    rows: Iterable[Sequence[Any]] = zip(*parts, strict=True) if parts else [()] * count
    if names is None:
        return [kind(row) for row in rows]
    named = [dict(zip(names, row)) for row in rows]  # noqa: B905  (as long as each other, asked often)
    return named if kind is dict else [_made(kind, fields) for fields in named]


def changed(tree: T, **fields: Any) -> T:
    """`dataclasses.replace` of a record, without a function call for each field."""
    return _made(type(tree), tree.__dict__ | fields)  # type: ignore[no-any-return]


def _made(kind: type, fields: dict[str, Any]) -> Any:
    """A record with these fields, set at once: a frozen dataclass sets them one by one."""
    made: Any = object.__new__(kind)
    made.__dict__.update(fields)
    return made


def _split(structure: Any, trees: list[Any], found: list[list[Any]]) -> None:
    if structure is LEAF:
        found.append(trees)
        return
    kind, names, inner = structure
    part = operator.attrgetter if kind in _FIELDS else operator.itemgetter
    for name, below in zip(range(len(inner)) if names is None else names, inner, strict=True):
        _split(below, list(map(part(name), trees)), found)


def spec_of(flat: Sequence[Any], structure: Any, numbers: bool = True) -> TreeSpec:
    """The spec of a tree from `flatten`; without `numbers` floats are constants too.

    Raises:
        FedpersError: a leaf is neither a tensor nor a plain value.
    """
    try:
        leaves = [(x.shape, x.dtype) if type(x) is Tensor else _leaf_spec(x, numbers) for x in flat]
        return _spec(structure, tuple(leaves))
    except TypeError:  # not hashable
        kinds = {type(x).__name__ for x in flat if getattr(type(x), "__hash__", None) is None}
        raise FedpersError(
            f"a {', '.join(sorted(kinds))} cannot be sent or stored; use records of tensors"
        ) from None


@lru_cache(2**12)  # equal specs are mostly one object, so that comparing them is quick
def _spec(structure: Any, leaves: tuple[Any, ...]) -> TreeSpec:
    return TreeSpec(structure, leaves)


def _leaf_spec(leaf: Any, numbers: bool) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.dtype
    return float if numbers and isinstance(leaf, float) else (type(leaf), leaf)


def _is_constant(spec: Any) -> bool:
    return spec is not float and not isinstance(spec[0], torch.Size)


def num_bytes(shape: Iterable[int], dtype: torch.dtype) -> int:
    """Bytes of a tensor."""
    return math.prod(shape) * dtype.itemsize
