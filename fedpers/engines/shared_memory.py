"""Trees of tensors in one block of memory, column by column: what processes of one machine exchange."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedpers.core.pytree import TreeSpec, flatten, num_bytes, spec_of

ALIGN = 64


class Column(NamedTuple):
    """Where tensors of one shape are: a row each, or one for all."""

    offset: int
    rows: int  # 0: all trees share one tensor


@dataclass
class Group:
    """Trees of one spec: what is needed to put them together again."""

    places: list[int]
    spec: TreeSpec
    columns: list[Any]  # for each leaf that is no constant, a Column or a list of numbers


class PackedTrees:
    """Trees ready to be written into a block of `size` bytes; what is there twice is written once."""

    def __init__(self, trees: Sequence[Any]) -> None:
        self.size = 0
        once = {id(tree): tree for tree in trees}
        number = dict(zip(once, range(len(once)), strict=True))
        self._writes: list[tuple[Column, list[Tensor]]] = []
        self._shared: dict[int, Column] = {}
        grouped: dict[TreeSpec, list[tuple[int, list[Any]]]] = defaultdict(list)
        for place, tree in enumerate(once.values()):
            flat, structure = flatten(tree)
            grouped[spec_of(flat, structure)].append((place, flat))
        groups = [self._group(spec, members) for spec, members in grouped.items()]
        self.content = [number[id(tree)] for tree in trees], groups

    def _group(self, spec: TreeSpec, members: list[tuple[int, list[Any]]]) -> Group:
        columns = zip(*(flat for _, flat in members), strict=True)
        varying = (c for c in columns if isinstance(c[0], Tensor | float))
        return Group([place for place, _ in members], spec, [self._column(c) for c in varying])

    def _column(self, column: tuple[Any, ...]) -> Any:
        first = column[0]
        if not isinstance(first, Tensor):
            return list(column)
        alike = all(x is first for x in column)
        if alike and id(first) in self._shared:
            return self._shared[id(first)]
        made = Column(self.size, 0 if alike else len(column))
        self.size += max(-(-first.nbytes * max(made.rows, 1) // ALIGN), 1) * ALIGN
        self._writes.append((made, [first] if alike else list(column)))
        if alike:
            self._shared[id(first)] = made
        return made

    def write(self, block: Tensor) -> None:
        """Copy all tensors into `block`, uint8 [size]."""
        for column, tensors in self._writes:
            first = tensors[0]
            if not first.nbytes:
                continue
            place = _view(block, column, first.shape, first.dtype)
            if first.is_cpu:
                torch.stack(tensors, out=place)
            else:  # put together on the GPU: one copy to the host a column
                place.copy_(torch.stack(tensors))


def unpack_trees(content: tuple[list[int], list[Group]], block: Tensor) -> list[Any]:
    """The trees, in the order in which they were given; their tensors are views of `block`."""
    order, groups = content
    found: dict[int, Any] = {}
    ones: dict[int, Tensor] = {}
    for group in groups:
        trees = group.spec.unstack(_columns(group, block, ones), len(group.places))
        found.update(zip(group.places, trees, strict=True))
    return [found[place] for place in order]


def _columns(group: Group, block: Tensor, ones: dict[int, Tensor]) -> Iterator[Sequence[Any]]:
    shapes = iter(group.spec.tensors)
    for column in group.columns:
        if isinstance(column, list):
            yield column
            continue
        rows = _view(block, column, *next(shapes)).unbind(0)
        yield rows if column.rows else [ones.setdefault(column.offset, rows[0])] * len(group.places)


def _view(block: Tensor, column: Column, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    rows = max(column.rows, 1)
    size = num_bytes((rows, *shape), dtype)
    if not size:
        return torch.empty(rows, *shape, dtype=dtype, device=block.device)
    return block[column.offset : column.offset + size].view(dtype).view(rows, *shape)
