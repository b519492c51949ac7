"""Data and random numbers of one client when a chunk of clients runs under torch.func.vmap.

Data are stacked when they are read, random numbers are drawn from each client's own stream, so a
stacked client sees what it sees alone. Sizes are padded; padding has mask 0.
"""

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpers.core.arrays import SPLITS
from fedpers.core.errors import FedpersError
from fedpers.core.rng import Stream, batch_weight, equal_weights
from fedpers.core.samples import ClientData, Data, Part
from fedpers.core.seeds import shuffled_each, uniform_each
from fedpers.core.vmap import PerClient, lift, mapped_once, outside, readable, row_of, scalar, stack_of

STEP = 1.4  # ratio of neighbouring padded sizes: at most 40 % padding


def padded_size(n: int, top: int | None = None) -> int:
    """The size that a client of n samples is padded to; it depends on nothing but the client.

    Sizes go down from `top` (the largest client's) by a constant ratio, so equal clients are not
    padded at all; without `top` they go up from 4 in eighths of a power of two.
    """
    if top is None:
        unit = max(2 ** (max(n, 1).bit_length() - 3), 4)
        return -(-n // unit) * unit
    size = top
    while (smaller := int(size / STEP)) >= max(n, 1):
        size = smaller
    return size


class Block:
    """One split of a chunk of clients, padded to `size` rows each.

    With `scratch` the stacks are made in memory that the next chunk uses again: fresh memory costs
    as much as the copy. This is for what outlives no chunk, as data in an evaluation.
    """

    def __init__(
        self,
        parts: Sequence[Data],
        size: int,
        scratch: dict[Any, Tensor] | None = None,
        sizes: list[int] | None = None,
    ) -> None:
        self.parts, self.size, self.scratch = parts, size, scratch
        self.sizes = [len(p) for p in parts] if sizes is None else sizes  # samples of each client
        self._kept: dict[str, Tensor] = {}

    @classmethod
    def of_clients(cls, clients: Sequence[ClientData], split: int, size: int, scratch: Any = None) -> "Block":
        """That split, of `SPLITS`, of some clients."""
        parts, sizes = [getattr(c, SPLITS[split]) for c in clients], [c.sizes[split] for c in clients]
        return cls(parts, size, scratch, sizes)

    @cached_property
    def count(self) -> Tensor:
        """Samples of each client, [C]."""
        like, n = self.parts[0].mask, self.sizes[0]
        one = len(set(self.sizes)) == 1
        count = scalar(float(n), like.dtype, like.device) if one else torch.tensor(self.sizes).to(like)
        return count.expand(len(self.sizes))

    def stack(self, name: str) -> Tensor:
        """Field `name` of all clients, [C, size, ...]."""
        if name not in self._kept:
            self._kept[name] = self._stack(name, [getattr(p, name) for p in self.parts])
        return self._kept[name]

    def _stack(self, name: str, rows: list[Tensor]) -> Tensor:
        whole = self._space(name, rows[0], len(rows))
        if all(n == self.size for n in self.sizes):
            return torch.stack(rows, out=whole)
        whole.zero_()
        for place, row, n in zip(whole.unbind(0), rows, self.sizes, strict=True):
            place[:n] = row
        return whole

    def _space(self, name: str, like: Tensor, count: int) -> Tensor:
        shape = (count, self.size, *like.shape[1:])
        if self.scratch is None:
            return like.new_empty(shape)
        key = (name, like.dtype, shape[1:])
        if key not in self.scratch or len(self.scratch[key]) < count:
            self.scratch[key] = like.new_empty(shape)
        return self.scratch[key][:count]

    def with_inputs(self, x: Tensor) -> "Block":
        """The same samples with other inputs, x [C, size, ...]."""
        x = x.contiguous()
        rows = zip(x.unbind(0), self.parts, self.sizes, strict=True)
        parts = [Data(row[:n], p.y, p.mask) for row, p, n in rows]
        block = Block(parts, self.size, sizes=self.sizes)
        block._kept["x"] = x
        return block

    def gather(self, name: str, index: Tensor) -> Tensor:
        """Rows index [C, ...] of field `name`, each client's own, [C, ..., *row]."""
        rows = [getattr(p, name) for p in self.parts]
        if rows[0].device.type != "cpu":
            whole = self.stack(name)
            first = torch.arange(len(rows), device=index.device) * self.size
            flat = whole.flatten(0, 1)
            return flat[index + first.reshape(-1, *[1] * (index.dim() - 1))]
        out = rows[0].new_empty(*index.shape, *rows[0].shape[1:])
        for place, row, i in zip(out.numpy(), rows, index.numpy(), strict=True):
            row.numpy().take(i, 0, place)  # a sixth of the time of torch's index_select for few rows
        return out


class StackedData(Data):
    """One split of the client that vmap traces: its fields are rows of the chunk's stacks."""

    _client: Tensor
    _block: Block | None = None  # None: the fields are given, as after dataclasses.replace
    _given: dict[str, Any]

    def __init__(self, x: Any = None, y: Any = None, mask: Any = None) -> None:
        self._put(given={"x": x, "y": y, "mask": mask})

    @classmethod
    def of(cls, client: Tensor, block: Block) -> "StackedData":
        """Client number `client` (a tensor under vmap) of a block."""
        data = cls()
        data._put(client=client, block=block)
        return data

    def _put(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, f"_{name}", value)

    def _field(self, name: str) -> Tensor:
        block = self._block
        return self._given[name] if block is None else lift(self._client, lambda: block.stack(name))

    x = property(lambda self: self._field("x"))  # type: ignore[assignment]
    y = property(lambda self: self._field("y"))  # type: ignore[assignment]
    mask = property(lambda self: self._field("mask"))  # type: ignore[assignment]

    @property
    def like(self) -> Tensor:
        """The first client's: nothing is stacked."""
        return self.mask if self._block is None else self._block.parts[0].like

    @property
    def num(self) -> Tensor:
        """How many samples are no padding, a scalar."""
        block = self._block
        return self.mask.sum() if block is None else lift(self._client, lambda: block.count)

    def __len__(self) -> int:
        return self.mask.shape[0] if self._block is None else self._block.size

    @property
    def whole(self) -> "StackedData":
        """All clients of the block at once, outside vmap: fields are stacks [C, ...]."""
        assert self._block is not None
        return StackedData.of(stack_of(self._client), self._block)

    @property
    def block(self) -> Block | None:
        """All clients of the chunk; None where fields were replaced."""
        return self._block

    @property
    def apart(self) -> PerClient:
        """Each client's own samples, for `one_by_one`."""
        assert self._block is not None
        return PerClient(self._block.parts)

    def by_size(self, f: Callable[[int], Any]) -> Tensor:
        """f(n) for each client's own n samples."""
        assert self._block is not None
        sizes = self._block.sizes
        found, new = {n: f(n) for n in set(sizes)}, self.like.new_tensor
        if len(found) > 1:
            return lift(self._client, lambda: new([found[n] for n in sizes]))
        return outside(new, *found.values())  # type: ignore[no-any-return]  # which all share

    def part(self, rows_of: Callable[[int], np.ndarray]) -> Data:
        """Each client's rows rows_of(n), n being its own number of samples."""
        assert self._block is not None
        of_size = dict(zip(self._block.sizes, self._block.parts, strict=True))
        # one object for all clients of a size
        rows = {n: p.part(rows_of).chosen for n, p in of_size.items()}  # type: ignore[attr-defined]
        parts = [Part(p, rows[n]) for p, n in zip(self._block.parts, self._block.sizes, strict=True)]
        return StackedData.of(self._client, Block(parts, len(rows_of(self._block.size))))

    def drawn(self, streams: Sequence[Stream], share: float) -> Data:
        """A share of each client's samples, drawn from its own stream."""
        assert self._block is not None
        sizes, top = self._block.sizes, self._block.size
        orders = shuffled_each(streams, sizes, top, 1, 0, (1, top)).numpy()[:, 0]
        drawn = [order[: max(1, int(share * n))] for order, n in zip(orders, sizes, strict=True)]
        parts = [Part(p, torch.from_numpy(rows)) for p, rows in zip(self._block.parts, drawn, strict=True)]
        return StackedData.of(self._client, Block(parts, max(1, int(share * top))))

    def with_inputs(self, x: Tensor) -> Data:
        """The same samples with other inputs; still a block, unless somebody differentiates through x."""
        if self._block is None or not mapped_once():
            return StackedData(x, self.y, self.mask)
        return StackedData.of(self._client, self._block.with_inputs(stack_of(x)))

    def take(self, index: Tensor, weight: Tensor) -> list[Data]:
        """Batches of rows index [S, B]."""
        block = self._block
        if block is None:
            return super().take(index, weight)
        x = lift(self._client, lambda i: block.gather("x", i), index)
        y = lift(self._client, lambda i: block.gather("y", i), index)
        steps = (t.unbind(index.dim() - 2) for t in (x, y, weight))
        return [Data(*row) for row in zip(*steps, strict=True)]


class StackedStream(Stream):
    """The streams of a chunk of clients as one; each client draws from its own."""

    def __init__(self, client: Tensor, streams: Sequence[Stream], sizes: Sequence[int], top: int) -> None:
        self.client, self.streams, self.sizes, self.top = client, streams, sizes, top
        self.ragged = any(n != top for n in sizes)

    @property
    def whole(self) -> "StackedStream":
        """The same streams outside vmap: what is drawn are stacks [C, ...]."""
        return StackedStream(stack_of(self.client), self.streams, self.sizes, self.top)

    @property
    def apart(self) -> PerClient:
        """Each client's own stream, for `one_by_one`."""
        return PerClient(self.streams)

    def on(self, data: Any) -> "StackedStream":
        """The same streams for other samples of these clients, or for some that all of them were sent."""
        if type(data) is Data and readable(data.mask):  # no row of a stack: nobody's are padded
            n = len(data)
            return StackedStream(self.client, self.streams, [n] * len(self.streams), n)
        block = data.block
        if not isinstance(block, Block) or (block.size, block.sizes) == (self.top, self.sizes):
            return self  # samples that a method made anew are of as many rows
        return StackedStream(self.client, self.streams, block.sizes, block.size)

    @property
    def generator(self) -> np.random.Generator:
        """Refused: a stack of clients has no generator."""
        raise FedpersError("stacked clients have no common generator; draw through the stream")

    def integer_seed(self) -> int:
        """Refused: a number that differs between clients cannot leave the stack."""
        raise FedpersError("integer_seed() differs between stacked clients")

    def schedule(self, n: int, batch_size: int, passes: int, steps: int) -> tuple[Tensor, Tensor]:
        """Each client's own minibatches, [S, B]; rows and columns beyond them have weight 0."""
        sizes = self.sizes if n == self.top else [n] * len(self.streams)
        width = min(batch_size, n)
        length = steps or passes * -(-n // width)
        index = shuffled_each(self.streams, sizes, batch_size, passes, steps, (length, width))
        if all([k == n for k in sizes]):
            weight = equal_weights(len(sizes), n, batch_size, length)
        else:
            weight = torch.zeros(index.shape)
            for w, k in zip(weight.numpy(), sizes, strict=True):
                own = batch_weight(k, batch_size, steps or passes * -(-k // min(batch_size, k)))
                w[: own.shape[0], : own.shape[1]] = own
        return self._lifted(index), self._lifted(weight)

    def some(self, data: Any, share: float) -> Any:
        """A share of each client's samples, at least one, drawn without replacement."""
        return data.drawn(self.streams, share)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers, float32."""
        return self._drawn(lambda s: s.normal(*shape))

    def uniform(self, *shape: int) -> Tensor:
        """Uniform numbers in [0, 1), float32."""
        drawn = uniform_each(self.streams, math.prod(shape))
        return self._lifted(drawn.view(len(self.streams), *shape))

    def integers(self, high: int, *shape: int) -> Tensor:
        """Whole numbers in [0, high), int64."""
        return self._drawn(lambda s: s.integers(high, *shape))

    def _drawn(self, draw: Callable[[Stream], Tensor]) -> Tensor:
        return self._lifted(torch.stack([draw(s) for s in self.streams]))

    def _lifted(self, table: Tensor) -> Tensor:
        return row_of(self.client, table if self.client.is_cpu else table.to(self.client.device))
