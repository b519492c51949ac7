"""What a client's data is, and what a federation of clients is. Data sets are in datasets/."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpers.core.pipeline import Pipeline
from fedpers.core.pytree import record


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
        """What training without autograd reads: this client as a block of one (None: cannot)."""
        return self

    @property
    def parts(self) -> list["Data"]:
        """The clients of a block."""
        return [self]

    @property
    def apart(self) -> Any:
        """The samples for `one_by_one`."""
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
        return [Data(*row) for row in zip(x.unbind(0), y.unbind(0), weight.unbind(0), strict=True)]


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


@record("core.ClientData")
class ClientData:
    """The three splits of one client; they share no sample."""

    train: Data
    valid: Data
    test: Data

    sizes = cached_property(lambda self: (len(self.train), len(self.valid), len(self.test)))  # of the splits


INCOMPLETE = "incomplete copy"  # how the note begins of a data set of which the machine has a part only


@dataclass(frozen=True)
class Federation:
    """A population of clients; `client(k)` gives partition k as tensors, decoded once, cheap to ask."""

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
    tokens: int = 0  # x are whole numbers below this, that stand for tokens of a text; 0: measurements
    pipeline: Pipeline = field(default_factory=Pipeline)  # how samples became tensors
    clients: tuple[str, ...] = ()  # [N] what the data calls each client; (): nothing

    @classmethod
    def from_arrays(
        cls,
        clients: Sequence[Any] | Mapping[str, Any],
        *,
        task: str = "classification",
        test_fraction: float = 0.2,
        valid_fraction: float = 0.1,
        target: str = "label",
        missing: str = "refuse",
        tokens: bool = False,
        seed: int = 0,
        name: str = "arrays",
        dtype: torch.dtype = torch.float32,
    ) -> "Federation":
        """A federation of your own arrays, NumPy's, torch's or lists.

        Args:
            clients: one entry a client, or {name: entry}: (x, y), which is cut, or a dict with train and
                test (and maybe valid), each (x, y); a pandas table or a Dataset of Hugging Face may stand
                for (x, y). x is [n, ...], of images [n, C, H, W]; bytes become x/255. y is [n]: numbers or
                words for classes, values or [n, out] for a regression.
            task: classification | binary | regression.
            test_fraction: of each client's samples, where no test samples are given.
            valid_fraction: of the rest, where no validation samples are given.
            target: the column of y in tables.
            missing: rows without a value: refuse | drop.
            tokens: x are numbers of tokens, for models of text.
            seed: of the cut.
            name: what results call this data.
            dtype: of x, and of y for a regression.

        Raises:
            DataError: names the client, what is wrong with its arrays and the remedy.
        """
        from fedpers.core.given import Reading, federation_of

        cuts = test_fraction, valid_fraction
        return federation_of(clients, Reading(task, *cuts, target, missing, tokens, seed, name, dtype))

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
