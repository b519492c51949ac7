"""What one client's data is."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpers.core.pytree import record
from fedpers.core.vmap import readable


@record("core.Data")
class Data:
    """One split of one client."""

    x: Tensor  # [n, ...] inputs, floating point; of a text the numbers of its tokens, [n, length]
    y: Tensor  # [n] class numbers (int64), or [n] / [n, out] targets for regression
    mask: Tensor  # [n] 1 for a sample, 0 for padding (only stacked clients are padded)

    def __len__(self) -> int:
        return self.mask.shape[0]

    @property
    def num(self) -> Tensor:
        """How many samples are no padding, a scalar."""
        return self.mask.sum()

    def by_size(self, f: Callable[[int], Any]) -> Tensor:
        """f(n) for the client's n samples, a number or rows of them, in the mask's type."""
        return self.like.new_tensor(f(len(self)))

    def of_class(self, num_classes: int) -> Tensor:
        """[n, K] 1 where a sample is of the class, in the mask's type; padding is of none."""
        classes = torch.arange(num_classes, device=self.y.device)
        return (self.y[:, None] == classes).to(self.mask.dtype) * self.mask[:, None]

    @cached_property
    def rows(self) -> tuple[int, torch.dtype, int, torch.dtype] | None:
        """Numbers in a sample's x and in its y, and their types; None if not side by side in plain memory."""
        n = max(self.x.shape[0], 1)
        plain = all(t.is_cpu and t.is_contiguous() and t.numel() for t in (self.x, self.y))
        return (self.x.numel() // n, self.x.dtype, self.y.numel() // n, self.y.dtype) if plain else None

    @property
    def like(self) -> Tensor:
        """A tensor of the mask's type and device; asking for it copies no sample."""
        return self.mask

    @property
    def block(self) -> Any:
        """This client as a block of one, which training without autograd reads; None if it cannot be one."""
        return self

    @property
    def parts(self) -> list["Data"]:
        """The clients of a block."""
        return [self]

    @property
    def apart(self) -> Any:
        """The samples as an argument of `one_by_one`."""
        return self

    def part(self, rows_of: Callable[[int], np.ndarray]) -> "Data":
        """The rows rows_of(n) of a client that has n samples; of more samples it must not give fewer."""
        return Part(self, torch.from_numpy(np.ascontiguousarray(rows_of(len(self)), dtype=np.int64)))

    def with_inputs(self, x: Tensor) -> "Data":
        """The same samples with other inputs x [n, ...], such as their features."""
        return Data(x, self.y, self.mask)

    def take(self, index: Tensor, weight: Tensor) -> list["Data"]:
        """Batches of rows index [S, B]; `weight` [S, B] becomes their mask."""
        x, y = (t[index.reshape(-1)].unflatten(0, index.shape) for t in (self.x, self.y))
        steps = [Data(*row) for row in zip(x.unbind(0), y.unbind(0), weight.unbind(0), strict=True)]
        return _without_padding(steps, weight) if weight.is_cpu and readable(weight) else steps


def _without_padding(steps: list[Data], weight: Tensor) -> list[Data]:
    """The batches without their rows of weight 0, unless there is no other: one client alone needs none."""
    found = list(steps)
    for i, count in enumerate((weight > 0).sum(-1).tolist()):
        if 0 < count < weight.shape[-1]:
            own = weight[i] > 0
            found[i] = Data(steps[i].x[own], steps[i].y[own], steps[i].mask[own])
    return found


class Part(Data):
    """Some rows of a client's samples; they are copied when somebody reads them."""

    of: Data
    chosen: Tensor  # [n] int64, on the CPU

    def __init__(self, of: Data, chosen: Tensor) -> None:
        self.__dict__.update(of=of, chosen=chosen)

    x = cached_property(lambda self: self._field("x"))  # type: ignore[assignment]
    y = cached_property(lambda self: self._field("y"))  # type: ignore[assignment]
    mask = cached_property(lambda self: self._field("mask"))  # type: ignore[assignment]
    like = property(lambda self: self.of.like)  # type: ignore[assignment]

    def _field(self, name: str) -> Tensor:
        field = getattr(self.of, name)
        return field.index_select(0, self.chosen.to(field.device))  # a third of the time of field[chosen]

    def __len__(self) -> int:
        return self.chosen.shape[0]

    @property
    def rows(self) -> tuple[int, torch.dtype, int, torch.dtype] | None:  # type: ignore[override]
        """As those that the part is of."""
        return self.of.rows


class Exact(Data):
    """Data whose batches hold no padding: BatchNorm would take it for samples."""

    def take(self, index: Tensor, weight: Tensor) -> list[Data]:
        """Batches of rows index [S, B], those of weight 0 left out."""
        rows = [i[w > 0] for i, w in zip(index, weight, strict=True)]
        return [Data(self.x[i], self.y[i], self.mask[i]) for i in rows]


@record("core.ClientData")
class ClientData:
    """The three splits of one client; they share no sample."""

    train: Data
    valid: Data
    test: Data

    sizes = cached_property(lambda self: (len(self.train), len(self.valid), len(self.test)))  # of the splits
