"""Somebody's own arrays: whether they can be used, what their classes are, how a client's samples are cut."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from fedpers.core.errors import DataError
from fedpers.core.pixels import channels_first, white

Pair = tuple[np.ndarray, np.ndarray]  # x [n, ...], y [n] or, for regression, [n, out]
WHOLE, TRAIN, VALID, TEST = "all", "train", "valid", "test"
SPLITS = (TRAIN, VALID, TEST)
MISSING = ("refuse", "drop")  # what becomes of rows without a value
NUMBERS = "fiub"  # kinds of NumPy types


class Part(NamedTuple):
    """Samples of one file or table, or of one split of it."""

    x: np.ndarray  # [n, ...]
    y: np.ndarray  # [n]
    columns: tuple[str, ...] = ()  # names of x's columns, in a table
    owner: np.ndarray | None = None  # [n] the client of each row, where the file says so

    def rows(self, chosen: np.ndarray | slice) -> "Part":
        """Some of them."""
        owner = None if self.owner is None else self.owner[chosen]
        return Part(self.x[chosen], self.y[chosen], self.columns, owner)

    def ordered(self, order: tuple[str, ...], where: str, first: str) -> "Part":
        """With columns in this order, of `first`; an array has no names, and its order is believed.

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


def as_array(value: Any, where: str) -> np.ndarray:
    """A NumPy array of what may be a tensor, a list or a table's columns.

    Raises:
        DataError: its rows have different shapes.
    """
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    try:
        return np.asarray(value)
    except ValueError as error:
        raise DataError(f"{where}: its rows have different lengths; pad or cut them to one") from error


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
    if x.dtype.kind not in NUMBERS:
        raise DataError(f"{where}: x holds {_kind(x)}, which is no number; encode it as numbers first")
    if x.ndim < 1 or y.ndim < 1 or len(x) != len(y):
        raise DataError(f"{where}: x is {x.shape} and y {y.shape}; give one y for each row of x")
    if not len(y):
        raise DataError(f"{where}: has no rows; give it some, or leave it out")
    x = x[:, None] if x.ndim == 1 else channels_first(x)
    if not x.size:
        raise DataError(f"{where}: x is {x.shape}, without features; give at least one beside the target")
    if np.isinf(x).any() or (y.dtype.kind == "f" and np.isinf(y).any()):
        raise DataError(f"{where}: holds infinite numbers; mend or drop these rows")
    gone = _gone(x) | _gone(y)
    if not gone.any():
        return x, y
    if missing == "refuse":
        raise DataError(
            f"{where}: {int(gone.sum())} of {len(y)} rows lack a value ({_first(x, gone, columns)}); "
            "fill them, or leave such rows out with data.missing=drop"
        )
    return usable(x[~gone], y[~gone], where)


def of_table(columns: Mapping[str, np.ndarray], target: str | None, where: str) -> Part:
    """x, y and the names of x's columns, of a table; a column may hold lists or images of one size.

    Raises:
        DataError: the target is not there, or another column holds no numbers.
    """
    columns = dict(columns)
    if target not in columns:
        names = ", ".join(list(columns)[:20])
        raise DataError(
            f"{where}: no target column '{target}'; there are {names}. "
            'Name it: data.target=... (on a device: target="...")'
        )
    y = columns.pop(target)
    blocks = {name: _block(name, values, where) for name, values in columns.items()}
    words = [name for name, values in blocks.items() if values.dtype.kind not in NUMBERS]
    if words:
        raise DataError(f"{where}: {', '.join(words)} hold no numbers; encode or drop these columns")
    if len(blocks) == 1 and next(iter(blocks.values())).ndim > 1:  # one column of arrays
        return Part(next(iter(blocks.values())), y)
    flat = [b.reshape(len(y), -1) for b in blocks.values()]
    labels = tuple(
        n if b.shape[1] == 1 else f"{n}.{i}"
        for n, b in zip(blocks, flat, strict=True)
        for i in range(b.shape[1])
    )
    x = np.column_stack(flat) if flat else np.zeros((len(y), 0))
    return Part(x if white(x) == 1 else x.astype(np.int64), y, labels)  # columns hold numbers, not pixels


def _block(name: str, values: np.ndarray, where: str) -> np.ndarray:
    """A column of numbers, or of lists or images of one size, as an array [n, ...]."""
    if values.dtype.kind != "O" or not len(values) or isinstance(values[0], str | None):
        return values
    pictures = hasattr(values[0], "getbands")  # of PIL
    try:
        whole = np.array([np.asarray(v) for v in values])
    except ValueError as error:
        raise DataError(f"{where}: column '{name}' holds different sizes; bring them to one") from error
    if not pictures:
        return whole
    return whole[:, None] if whole.ndim == 3 else np.ascontiguousarray(whole.transpose(0, 3, 1, 2))


def in_order(parts: Sequence[tuple[str, Part]]) -> tuple[list[tuple[str, Part]], tuple[str, ...]]:
    """(parts of (where, part) with their columns in the order of the first that names some, notes).

    Raises:
        DataError: two have other columns.
    """
    first, order = next(((w, p.columns) for w, p in parts if p.columns), ("", ()))
    bare = [w for w, part in parts if order and not part.columns and len(part.y)]
    notes = (f"{bare[0]}: x has no names of columns; they are taken in the order of {first}",) if bare else ()
    return [(w, part.ordered(order, w, first)) for w, part in parts], notes


def _gone(values: np.ndarray) -> np.ndarray:
    """[n] whether a row lacks a value."""
    if values.dtype.kind == "f":
        return np.asarray(np.isnan(values.reshape(len(values), -1)).any(axis=1))
    if values.dtype.kind in "OU":
        return np.array([v is None or v == "" or v != v for v in values.tolist()])
    return np.zeros(len(values), dtype=bool)


def _first(x: np.ndarray, gone: np.ndarray, columns: Sequence[str]) -> str:
    row = int(np.flatnonzero(gone)[0])
    lacking = np.flatnonzero(_gone(x[row].reshape(-1, 1)))
    if not len(lacking):
        return f"the first is row {row + 1}, its target"
    name = f"'{columns[lacking[0]]}'" if columns else str(lacking[0] + 1)
    return f"the first is row {row + 1}, column {name}"


def _kind(x: np.ndarray) -> str:
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


def numbered(targets: Sequence[np.ndarray], task: str, where: str) -> tuple[list[np.ndarray], list[str]]:
    """(targets as the task takes them, names of the classes): numbers 0..C-1, or float values.

    The classes are the different values of all clients together, sorted; words that are all whole numbers,
    as folders may be called, as numbers.

    Raises:
        DataError: the targets do not fit the task.
    """
    text = {y.dtype.kind in "OU" for y in targets}
    if len(text) > 1:
        raise DataError(f"{where}: targets are numbers of some clients and text of others; make them alike")
    if task == "regression":
        return [_values(y, where) for y in targets], []
    if any(y.ndim > 1 for y in targets):
        shape = next(y.shape for y in targets if y.ndim > 1)
        raise DataError(
            f"{where}: y is {shape}; a class is one number or word, so give [n] (y.argmax(1) of one-hot rows)"
        )
    whole = np.concatenate([y.astype(str) if text == {True} else y for y in targets])
    if whole.dtype.kind == "f" and (whole != np.floor(whole)).any():
        value = whole[whole != np.floor(whole)][0]
        raise DataError(f"{where}: target {value:g} is no class; for numbers set data.task=regression")
    classes, numbers = np.unique(whole, return_inverse=True)
    _check_classes(classes, len(whole), task, where)
    cuts = np.cumsum([len(y) for y in targets])[:-1]
    names = [class_name(c) for c in classes.tolist()]
    order = sorted(range(len(names)), key=lambda i: int(names[i])) if all(map(_is_whole, names)) else None
    if order is not None:
        numbers = np.argsort(order)[numbers]
        names = [names[i] for i in order]
    return np.split(numbers.astype(np.int64), cuts), names


def class_name(value: Any) -> str:
    """What a class is called: 1 and 1.0 alike."""
    return str(value) if isinstance(value, str) or value != int(value) else str(int(value))


def _is_whole(name: str) -> bool:
    return name.isascii() and name.removeprefix("-").isdigit()


def _values(y: np.ndarray, where: str) -> np.ndarray:
    if y.dtype.kind not in NUMBERS:
        raise DataError(f"{where}: target {_kind(y)} is no number; for classes set data.task=classification")
    return y.astype(np.float64)


def _check_classes(classes: np.ndarray, rows: int, task: str, where: str) -> None:
    if len(classes) < 2:
        raise DataError(f"{where}: every target is {classes[0]!s}; there must be at least two classes")
    if task == "binary" and len(classes) != 2:
        text = f"there are {len(classes)} classes; data.task=binary takes two, data.task=classification any"
        raise DataError(f"{where}: {text}")
    if len(classes) == rows > 20:
        raise DataError(
            f"{where}: the target has {rows} different values in {rows} rows, so it names rows and no "
            "classes; choose another data.target, or data.task=regression"
        )


def renamed(names: Sequence[str]) -> tuple[str, ...]:
    """A note of what classes were called, where they were not 0, 1, ...; at most 20 of them."""
    if list(names) == [str(i) for i in range(len(names))]:
        return ()
    shown = ", ".join(f"{i}={name}" for i, name in enumerate(names[:20]))
    return (f"classes: {shown}{', ...' if len(names) > 20 else ''}",)


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


def cut(n: int, test_fraction: float, valid_fraction: float, rng: Generator) -> dict[str, np.ndarray]:
    """Rows of each split, cut from one random order: test (at least one), then validation, then training."""
    tests = max(1, int(test_fraction * n + 1e-9))  # 0.29 * 100 is 28.999...
    valids = int(valid_fraction * (n - tests) + 1e-9)
    pieces = np.split(rng.permutation(n), [tests, tests + valids])
    return dict(zip((TEST, VALID, TRAIN), pieces, strict=True))
