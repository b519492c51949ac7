"""What a client's data is, and what a federation of clients is. Data sets are in datasets/."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpers.core.pytree import record


@record("core.Data")
class Data:
    """One split of one client."""

    x: Tensor  # [n, ...] inputs, floating point
    y: Tensor  # [n] class numbers (int64), or [n] / [n, out] targets for regression
    mask: Tensor  # [n] 1 for a sample, 0 for padding (only stacked clients are padded)

    def __len__(self) -> int:
        return self.mask.shape[0]

    @property
    def num(self) -> Tensor:
        """How many samples are no padding, a scalar."""
        return self.mask.sum()

    @cached_property
    def rows(self) -> tuple[int, torch.dtype, int, torch.dtype] | None:
        """Numbers in a sample's x and in its y, and their types; None if not side by side in plain memory."""
        n = max(self.x.shape[0], 1)
        plain = all(t.is_cpu and t.is_contiguous() and t.numel() for t in (self.x, self.y))
        return (self.x.numel() // n, self.x.dtype, self.y.numel() // n, self.y.dtype) if plain else None

    @property
    def block(self) -> Any:
        """What training without autograd reads: this client as a block of one (None: cannot)."""
        return self

    @property
    def parts(self) -> list["Data"]:
        """The clients of a block."""
        return [self]

    def take(self, index: Tensor, weight: Tensor) -> list["Data"]:
        """Batches of rows index [S, B]; `weight` [S, B] becomes their mask."""
        rows = index.reshape(-1)
        x, y = (t[rows].unflatten(0, index.shape) for t in (self.x, self.y))
        return [Data(*row) for row in zip(x.unbind(0), y.unbind(0), weight.unbind(0), strict=True)]


@record("core.ClientData")
class ClientData:
    """The three splits of one client; they share no sample."""

    train: Data
    valid: Data
    test: Data


@dataclass(frozen=True)
class Federation:
    """A population of clients.

    `client(k)` gives the data of partition k as tensors (decoded once, cheap to call again).
    """

    name: str
    num_clients: int
    input_shape: tuple[int, ...]
    num_classes: int  # outputs that a model needs (1 for regression)
    task: str  # classification | binary | regression
    client: Callable[[int], ClientData]
    num_train: np.ndarray  # [N] training samples a client
    num_test: np.ndarray  # [N]
    label_counts: np.ndarray  # [N, classes] training labels; [N, 0] for regression
    truth: dict[str, np.ndarray] = field(default_factory=dict)  # e.g. group [N], membership [N, K]
    notes: tuple[str, ...] = ()  # what a reader of the results must know
    holdout: dict[str, Data] = field(default_factory=dict)  # test samples of each source

    def digest(self) -> str:
        """A short text that differs, in all likelihood, where the data does.

        Of the sizes, the labels' counts, and the samples of the first and the last client: enough to tell
        one population from another, and quick for a large one.
        """
        kind = (self.num_clients, self.input_shape, self.num_classes, self.task)
        found = hashlib.sha256(repr(kind).encode())
        for counts in (self.num_train, self.num_test, self.label_counts):
            found.update(np.ascontiguousarray(counts, dtype=np.int64).tobytes())
        for k in sorted({0, self.num_clients - 1}):
            for part in (self.client(k).train, self.client(k).test):
                found.update(part.x.cpu().contiguous().numpy().tobytes())
                found.update(part.y.cpu().contiguous().numpy().tobytes())
        return found.hexdigest()[:16]
