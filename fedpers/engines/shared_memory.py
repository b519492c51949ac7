"""Many trees in one block of memory, column by column: what processes of one machine exchange."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedpers.core.pytree import flatten, rebuild

ALIGN = 64


@dataclass
class Column:
    """Tensors of one shape: a row each, or one for all."""

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    rows: int  # 0: all trees share one tensor

    @property
    def count(self) -> int:
        """Bytes."""
        size = self.dtype.itemsize * max(self.rows, 1)
        for n in self.shape:
            size *= n
        return size


@dataclass
class Group:
    """Trees of one structure and equal shapes: what is needed to put them together again."""

    places: list[int]
    structure: Any
    columns: list[Any]  # a Column, or the list of plain values


class Parcel:
    """Trees ready to be written into a block of `size` bytes; what is there twice is packed once."""

    def __init__(self, trees: Sequence[Any]) -> None:
        self.size = 0
        once = {id(tree): tree for tree in trees}
        number = dict(zip(once, range(len(once)), strict=True))
        self._writes: list[tuple[Column, list[Tensor]]] = []
        self._shared: dict[int, Column] = {}
        grouped: dict[Any, list[tuple[int, list[Any]]]] = defaultdict(list)
        for place, tree in enumerate(once.values()):
            flat, structure = flatten(tree)
            grouped[structure, tuple(map(_kind, flat))].append((place, flat))
        self.groups = [self._group(key[0], rows) for key, rows in grouped.items()]
        self.content = [number[id(tree)] for tree in trees], self.groups

    def _group(self, structure: Any, rows: list[tuple[int, list[Any]]]) -> Group:
        columns = zip(*(flat for _, flat in rows), strict=True)
        return Group([place for place, _ in rows], structure, [self._column(c) for c in columns])

    def _column(self, column: tuple[Any, ...]) -> Any:
        first = column[0]
        if not isinstance(first, Tensor):
            return list(column)
        alike = all(x is first for x in column)
        if alike and id(first) in self._shared:
            return self._shared[id(first)]
        made = Column(self.size, tuple(first.shape), first.dtype, 0 if alike else len(column))
        self.size += max(-(-made.count // ALIGN), 1) * ALIGN
        self._writes.append((made, [first] if alike else list(column)))
        if alike:
            self._shared[id(first)] = made
        return made

    def write(self, block: Tensor) -> None:
        """Copy all tensors into `block`, uint8 [size]."""
        for column, tensors in self._writes:
            space = _view(block, column, max(column.rows, 1))
            if column.count:
                torch.stack(tensors, out=space)


def open_parcel(content: tuple[list[int], list[Group]], block: Tensor) -> list[Any]:
    """The trees, in the order in which they were packed; their tensors are views of `block`."""
    order, groups = content
    found: dict[int, Any] = {}
    ones: dict[int, Tensor] = {}
    for group in groups:
        columns = [_values(c, block, ones, len(group.places)) for c in group.columns]
        rows = zip(*columns, strict=True) if columns else [()] * len(group.places)
        for place, row in zip(group.places, rows, strict=True):
            found[place] = rebuild(group.structure, row)
    return [found[place] for place in order]


def _values(column: Any, block: Tensor, ones: dict[int, Tensor], count: int) -> Sequence[Any]:
    if isinstance(column, list):
        return column
    if column.rows:
        return _view(block, column, column.rows).unbind(0)
    one = ones.setdefault(column.offset, _view(block, column, 1)[0])
    return [one] * count


def _view(block: Tensor, column: Column, rows: int) -> Tensor:
    if not column.count:
        return torch.empty(rows, *column.shape, dtype=column.dtype)
    part = block[column.offset : column.offset + column.count]
    return part.view(column.dtype).view(rows, *column.shape)


def _kind(leaf: Any) -> Any:
    return (leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else None
