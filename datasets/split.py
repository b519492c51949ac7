"""What a partition is: which samples each client has, and how it sees them."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from fedpers.core.errors import DataError

Indices = list[np.ndarray]


@dataclass(frozen=True)
class Source:
    """One way of seeing the set: quarter turns of the image, and other class numbers."""

    turns: int = 0  # counter-clockwise quarter turns
    labels: np.ndarray | None = None  # new class number of each class; -1: not in the source


@dataclass(frozen=True)
class Seen:
    """What whoever predicts must know of the samples that a model was trained on."""

    turns: int  # counter-clockwise quarter turns of all images
    classes: tuple[str, ...]  # what outputs 0, 1, ... stand for; (): a regression, or not one thing


@dataclass(frozen=True)
class Partition:
    """Sample numbers of each client in the training and in the test part of a set."""

    train: Indices
    test: Indices
    truth: dict[str, np.ndarray] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    sources: tuple[Source, ...] = (Source(),)
    train_source: Indices | None = None  # source of each sample; None: all from sources[0]
    test_source: Indices | None = None

    def __len__(self) -> int:
        return len(self.train)


def both(
    deal: Callable[[np.ndarray], Indices], train: np.ndarray, test: np.ndarray
) -> tuple[Indices, Indices]:
    """The training part and the test part, dealt by the same rule."""
    return deal(train), deal(test)


def evenly(items: np.ndarray, parts: int) -> Indices:
    """`items` in `parts` runs whose lengths differ by at most 1, the longer ones first."""
    return np.array_split(items, parts)


def runs(items: np.ndarray, sizes: np.ndarray) -> Indices:
    """`items` in runs of these lengths."""
    ends = np.cumsum(sizes).tolist()
    return [items[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def by_owner(items: np.ndarray, owner: np.ndarray, count: int) -> Indices:
    """Those of each of `count` owners, in their order; `owner` is that of each item."""
    return runs(items[owner.argsort(kind="stable")], np.bincount(owner, minlength=count))


def check_sizes(part: Partition, has_test: bool, min_size: int) -> None:
    """Raise DataError, with the numbers, if a client lacks training or test samples."""
    for name, lists, low in (("training", part.train, min_size), ("test", part.test, 1)):
        if name == "test" and not has_test:
            continue
        short = [k for k, index in enumerate(lists) if len(index) < low]
        if short:
            raise DataError(
                f"{len(short)} of {len(lists)} clients have fewer than {low} {name} sample(s), "
                f"the first is client {short[0]} with {len(lists[short[0]])} (all clients "
                f"together: {sum(map(len, lists))}); use fewer data.num_clients, more data "
                "(data.limit, data.train_per_client), or data.pool=true for more test samples"
            )
