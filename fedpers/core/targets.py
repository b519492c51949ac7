"""What somebody's targets are: classes numbered over all clients, or values."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedpers.core.arrays import NUMBERS, kind_of, native
from fedpers.core.errors import DataError
from fedpers.core.tasks import CLASSED, IGNORED

ABSENT = {"", "?", "na", "n/a", "nan", "none", "null"}  # what stands for no value in a .csv, in any case
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def numbered(targets: Sequence[np.ndarray], task: str, where: str) -> tuple[list[np.ndarray], list[str]]:
    """(targets as the task takes them, names of the classes): numbers 0..C-1, or float values.

    The classes are the different values of all clients together, in the order of `in_order_of_value`. Names
    are text: 01 and 1 are two classes; 1 and 1.0 are one.

    Raises:
        DataError: the targets do not fit the task.
    """
    if task not in CLASSED:
        return [_UNNAMED[task](y, where) for y in targets], []
    for y in targets:
        _check_one_each(y, where)
    found = [_names(y, where) for y in targets]
    numbers = {all(map(NUMBER.fullmatch, names)) for names, _ in found}
    if len(numbers) > 1:
        raise DataError(
            f"{where}: targets are numbers for some clients and text for others; write all as numbers "
            "or all as text"
        )
    whole = [name for names, _ in found for name in names]
    if numbers == {True}:
        _check_whole(whole, where)
        found = [([plain(name) for name in names], which) for names, which in found]
    classes = in_order_of_value({name for names, _ in found for name in names})
    _check_classes(classes, sum(map(len, targets)), task, where)
    place = {name: i for i, name in enumerate(classes)}
    return [np.array([place[n] for n in names], dtype=np.int64)[which] for names, which in found], classes


def _check_one_each(y: np.ndarray, where: str) -> None:
    if y.dtype.kind == "O" and len(y) and isinstance(y[0], list | tuple | np.ndarray):
        raise DataError(f"{where}: a target is a {type(y[0]).__name__}; a class is one number or word a row")
    if y.ndim == 1:
        return
    if y.ndim == 2 and y.shape[1] == 1:
        remedy = "give y[:, 0]"
    elif (
        y.ndim == 2 and y.dtype.kind in NUMBERS and ((y == 1).sum(1) == 1).all() and (y != 0).sum() == len(y)
    ):
        remedy = "these rows are one-hot, so give y.argmax(1)"
    else:
        remedy = "for several labels a row set data.task=multilabel, for tokens data.task=tokens"
    raise DataError(f"{where}: y is {y.shape}; a class is one number or word, so give [n]: {remedy}")


def _names(y: np.ndarray, where: str) -> tuple[list[str], np.ndarray]:
    """(different classes of one client by name, which of them each row has)."""
    words = np.array([class_name(v) for v in y.tolist()]) if y.dtype.kind == "O" else y
    found, which = np.unique(words, return_inverse=True)
    names = [class_name(value) for value in found.tolist()]
    rest = [n for n in names if n.lower() not in ABSENT]
    if len(rest) < len(names) and rest and all(map(NUMBER.fullmatch, rest)):
        word = next(n for n in names if n.lower() in ABSENT)
        raise DataError(
            f"{where}: targets are numbers and '{word}'; leave the field empty where there is no target, or "
            "name all classes by words"
        )
    return names, which.reshape(-1)


def _check_whole(names: Sequence[str], where: str) -> None:
    wrong = next((n for n in names if float(n) != np.floor(float(n))), None)
    if wrong is not None:
        raise DataError(f"{where}: target {wrong} is no class; for numbers set data.task=regression")


def class_name(value: Any) -> str:
    """What a class is called: the numbers 1 and 1.0 alike."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, str) or not isinstance(value, bool | int | float):
        return str(value)
    return repr(value) if value != int(value) else str(int(value))


def plain(name: str) -> str:
    """A number's text as of a whole number: 1.0, as a table writes a column with gaps, is 1."""
    head, point, tail = name.partition(".")
    return head if point and not tail.strip("0") else name


def in_order_of_value(names: set[str]) -> list[str]:
    """Sorted: by value, where all are numbers; else as text."""
    if all(map(NUMBER.fullmatch, names)):
        return sorted(names, key=lambda name: (float(name), name))
    return sorted(names)


def _values(y: np.ndarray, where: str) -> np.ndarray:
    y = native(y)
    if y.dtype.kind not in NUMBERS:
        raise DataError(
            f"{where}: target {kind_of(y)} is no number; for classes set data.task=classification"
        )
    return y.astype(np.float64)


def _labels(y: np.ndarray, where: str) -> np.ndarray:
    y = _values(y, where)
    if y.ndim != 2 or not np.isin(y, (0, 1)).all():
        raise DataError(
            f"{where}: with data.task=multilabel y must be [n, labels] of 0 and 1; it "
            f"is {y.shape} with values from {y.min()} to {y.max()}"
        )
    return y


def _tokens(y: np.ndarray, where: str) -> np.ndarray:
    y = _values(y, where)
    if y.ndim != 2 or (y != np.floor(y)).any() or ((y < 0) & (y != IGNORED)).any() or y.max(initial=-1) < 0:
        raise DataError(
            f"{where}: with data.task=tokens y must be [n, length] of whole numbers from 0, or {IGNORED} "
            f"where a token counts for nothing; it is {y.shape} with values from {y.min()} to {y.max()}"
        )
    return y.astype(np.int64)


_UNNAMED = {"regression": _values, "multilabel": _labels, "tokens": _tokens}  # targets that are no classes


def outputs_of(targets: Sequence[np.ndarray], classes: Sequence[str], task: str, tokens: int) -> int:
    """Outputs that a model of these targets needs; of tokens so many that it can say what it reads."""
    if task == "tokens":
        return max(tokens, *(int(y.max(initial=0)) + 1 for y in targets))
    width = targets[0].shape[1:]
    return 1 if task == "binary" else len(classes) or int(np.prod(width, dtype=int))


def _check_classes(classes: Sequence[str], rows: int, task: str, where: str) -> None:
    if len(classes) < 2:
        raise DataError(f"{where}: every target is {classes[0]}; there must be at least two classes")
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
