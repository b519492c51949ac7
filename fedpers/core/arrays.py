"""A user's arrays: whether they can be used, and how a client's samples are split."""

from collections.abc import Iterable, Sequence
from decimal import Decimal
from numbers import Number
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from fedpers.core.errors import DataError
from fedpers.core.pixels import channels_first

Pair = tuple[np.ndarray, np.ndarray]  # x [n, ...], y [n] or, for regression, [n, out]
WHOLE, TRAIN, VALID, TEST = "all", "train", "valid", "test"
SPLITS = (TRAIN, VALID, TEST)
SPLIT_NAMES = {  # what people call files and folders of a split, in whatever case
    TRAIN: ("train", "training"),
    VALID: ("valid", "validation", "val"),
    TEST: ("test", "testing"),
}
MISSING = ("refuse", "drop")  # what becomes of rows without a value
NUMBERS = "fiub"  # kinds of NumPy types


class Part(NamedTuple):
    """Samples of one file or table, or of one split of it."""

    x: np.ndarray  # [n, ...]
    y: np.ndarray  # [n]
    columns: tuple[str, ...] = ()  # names of x's columns, in a table
    owner: np.ndarray | None = None  # [n] the client of each row, where the file says so

    def rows(self, chosen: np.ndarray | slice) -> "Part":
        """The samples of the given rows."""
        owner = None if self.owner is None else self.owner[chosen]
        return Part(self.x[chosen], self.y[chosen], self.columns, owner)

    def ordered(self, order: tuple[str, ...], where: str, first: str) -> "Part":
        """With the columns in this order, that of `first`; columns without names keep their own.

        Raises:
            DataError: other columns.
        """
        if self.columns == order or not self.columns or not order:
            return self
        if set(self.columns) != set(order):
            odd = ", ".join(sorted(set(self.columns) ^ set(order))[:10])
            raise DataError(
                f"{where}: has other columns than {first} ({odd} in one of them only); give all the same"
            )
        return self._replace(x=self.x[:, [self.columns.index(c) for c in order]], columns=order)


def split_of(name: str) -> str | None:
    """The split that a file or folder of this name holds; None of any other name."""
    return next((split for split, names in SPLIT_NAMES.items() if name.lower() in names), None)


def as_array(value: Any, where: str) -> np.ndarray:
    """A NumPy array of what may be a tensor, a list or a table's columns; masked entries are missing ones.

    Raises:
        DataError: its rows have different shapes, or no array can be made of it.
    """
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = value.float() if value.dtype == torch.bfloat16 else value  # NumPy has no such type
    if np.ma.is_masked(value):
        value, gone = np.array(value.data, dtype=object), np.ma.getmaskarray(value)
        value[gone] = None
    try:
        return np.asarray(value)
    except ValueError as error:
        raise DataError(f"{where}: its rows have different lengths; pad or cut them to one length") from error
    except TypeError as error:  # a sparse tensor
        raise DataError(f"{where}: is no array ({error}); give NumPy's, or a dense tensor") from error


def doubles(array: np.ndarray) -> Tensor:
    """A float64 tensor; copied only from another type, or from memory that may not be written."""
    return torch.from_numpy(np.require(array, np.float64, "W"))


def usable(
    x: np.ndarray, y: np.ndarray, where: str, missing: str = "refuse", columns: Sequence[str] = ()
) -> Pair:
    """The rows of x and y that can be used; `where` names them in messages, `columns` those of x.

    Raises:
        DataError: x is no numbers, the lengths differ, there are no rows, or values are missing or infinite.
    """
    x, y = native(x), y if y.dtype.kind == "O" else native(y)
    if x.dtype.kind not in NUMBERS:
        raise DataError(f"{where}: x holds {kind_of(x)}, which is no number; encode it as numbers first")
    if x.ndim < 1 or y.ndim < 1 or len(x) != len(y):
        raise DataError(f"{where}: x is {x.shape} and y {y.shape}; give one y for each row of x")
    if not len(y):
        raise DataError(f"{where}: has no rows; give it some, or leave it out")
    x = x[:, None] if x.ndim == 1 else channels_first(x)
    if not x.size:
        raise DataError(f"{where}: x is {x.shape}, without features; give at least one beside the target")
    endless = _infinite(x) | _infinite(y)
    if endless.any():
        first = _first(np.where(np.isinf(x), np.nan, 0.0), endless, columns)
        raise DataError(f"{where}: holds infinite numbers ({first}); mend or drop these rows")
    gone = _gone(x) | _gone(y)
    if not gone.any():
        return x, y
    if missing == "refuse":
        raise DataError(
            f"{where}: {int(gone.sum())} of {len(y)} rows lack a value ({_first(x, gone, columns)}); "
            "fill them, or leave such rows out with data.missing=drop"
        )
    return usable(x[~gone], y[~gone], where)


def lacking(value: Any) -> bool:
    """Whether a cell is missing: None, NaN, an empty word, or pandas' NA."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, str | float | np.floating | Decimal) and (value == "" or value != value)


def native(x: np.ndarray) -> np.ndarray:
    """Numbers as torch takes them: in this machine's order of bytes, at most 64 bits, objects as float64."""
    if x.dtype.kind == "O" and all(isinstance(v, Number | np.bool_) or lacking(v) for v in x.reshape(-1)):
        return np.array([np.nan if lacking(v) else float(v) for v in x.reshape(-1)]).reshape(x.shape)
    if x.dtype.kind == "f" and x.dtype.itemsize > 8:
        return x.astype(np.float64)
    return x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))


def _infinite(values: np.ndarray) -> np.ndarray:
    """[n] whether a row holds an infinite number."""
    if values.dtype.kind != "f":
        return np.zeros(len(values), dtype=bool)
    return np.asarray(np.isinf(values.reshape(len(values), -1)).any(axis=1))


def _gone(values: np.ndarray) -> np.ndarray:
    """[n] whether a row lacks a value."""
    if values.dtype.kind == "f":
        return np.asarray(np.isnan(values.reshape(len(values), -1)).any(axis=1))
    if values.dtype.kind == "U":
        return np.asarray(values == "")
    if values.dtype.kind == "O":
        return np.array([lacking(v) for v in values])
    return np.zeros(len(values), dtype=bool)


def _first(x: np.ndarray, gone: np.ndarray, columns: Sequence[str]) -> str:
    row = int(np.flatnonzero(gone)[0])
    lacking = np.flatnonzero(_gone(x[row].reshape(-1, 1)))
    if not len(lacking):
        return f"the first is row {row + 1} of these, its target"
    name = f"'{columns[lacking[0]]}'" if columns else str(lacking[0] + 1)
    return f"the first is row {row + 1} of these, column {name}"


def kind_of(x: np.ndarray) -> str:
    """What an array that holds no numbers holds, for messages."""
    value = x.reshape(-1)[0] if x.size else ""
    return f"{type(value).__name__} {str(value)[:30]!r}" if x.dtype.kind in "OUS" else f"type {x.dtype}"


def whole_numbers(x: np.ndarray, where: str) -> int:
    """How many tokens there are, one more than the highest in x.

    Raises:
        DataError: x holds something that is no token.
    """
    if x.ndim != 2 or (x < 0).any() or (x != np.floor(x)).any():
        raise DataError(
            f"{where}: with data.tokens=true x must be [n, length] of whole numbers from 0; it is {x.shape} "
            f"with values from {x.min()} to {x.max()}"
        )
    return int(x.max(initial=0)) + 1


def alike(shapes: Iterable[tuple[str, tuple[int, ...]]]) -> tuple[int, ...]:
    """The shape of a sample that all clients share, of (client, shape) pairs.

    Raises:
        DataError: two clients differ.
    """
    first: tuple[str, tuple[int, ...]] | None = None
    for where, shape in shapes:
        first = first or (where, shape)
        if shape != first[1]:
            raise DataError(
                f"{where}: a sample has shape {shape}, that of {first[0]} {first[1]}; "
                "give all clients the same"
            )
    if first is None:
        raise DataError("there are no clients; give at least one")
    return first[1]


def count(fraction: float, n: int) -> int:
    """The whole samples in `fraction` of n: 29 of 0.29 * 100, which is 28.999..."""
    return int(fraction * n + 1e-9)


def cut(n: int, test_fraction: float, valid_fraction: float, rng: Generator) -> dict[str, np.ndarray]:
    """Rows of each split, cut from one random order: test (at least one), then validation, then training."""
    tests = max(1, count(test_fraction, n))
    valids = count(valid_fraction, n - tests)
    pieces = np.split(rng.permutation(n), [tests, tests + valids])
    return dict(zip((TEST, VALID, TRAIN), pieces, strict=True))
