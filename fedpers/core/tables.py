"""Tables: columns by their names to x and y, and what a cell may hold."""

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from numbers import Number

import numpy as np

from fedpers.core.arrays import NUMBERS, Part, lacking
from fedpers.core.errors import DataError
from fedpers.core.pixels import white
from fedpers.core.targets import NUMBER

INDEX = re.compile(r"|Unnamed: \d+|__index_level_\d+__")  # what pandas calls an index that has no name
MARKED = re.compile(r"[+-]?\d{1,3}([,.'\s]\d{3})+([,.]\d+)?|[+-]?\d+,\d+")  # 1,234.5 and 1234,5


def of_table(columns: Mapping[str, np.ndarray], target: str | None, where: str) -> Part:
    """x, y and the names of x's columns, of a table; a column may hold lists or images of one size.

    Raises:
        DataError: the target is not there, or another column has no name or holds no numbers.
    """
    columns = dict(columns)
    if target not in columns:
        names = ", ".join(list(columns)[:20])
        raise DataError(
            f"{where}: no target column '{target}'; there are {names}. "
            'Name it: data.target=... (on a device: target="...")'
        )
    y = columns.pop(target)
    _check_named(columns, where)
    if not len(y):
        raise DataError(f"{where}: has no rows; give it some, or leave it out")
    blocks = {name: _block(name, values, where) for name, values in columns.items()}
    words = [name for name, values in blocks.items() if values.dtype.kind not in NUMBERS]
    if words:
        raise DataError(f"{where}: {_of_words(words, blocks[words[0]])}")
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


def _of_words(names: Sequence[str], values: np.ndarray) -> str:
    """What is wrong with columns of text, of which `values` are the first's, and what to do."""
    there = [(i, str(v)) for i, v in enumerate(values.tolist(), 1) if not lacking(v)]
    row, value = next((p for p in there if not NUMBER.fullmatch(p[1])), there[0])
    columns = f"columns {', '.join(names)} hold" if len(names) > 1 else f"column {names[0]} holds"
    found = f"{columns} text where numbers are expected ({names[0]}, row {row}: {value[:30]!r})"
    if MARKED.fullmatch(value):
        return f"{found}; write numbers with a decimal point and without marks of thousands: 1234.5"
    return (
        f"{found}; make a category columns of 0 and 1 (pandas.get_dummies) and a date a number of days, "
        "leave the field of a missing value empty, and drop columns that are no features; the column that "
        "names clients is data.client=..."
    )


def _check_named(names: Iterable[str], where: str) -> None:
    odd = next((n for n in names if INDEX.fullmatch(n)), None)
    if odd is not None:
        raise DataError(
            f"{where}: has a column without a name{f' ({odd})' if odd else ''}, as pandas writes its index; "
            "write the table with index=False, or give the column a name"
        )


def by_name(part: Part) -> Part:
    """With its columns in the order of their names, numbers in them by value: x2 before x10."""
    return part.ordered(tuple(sorted(part.columns, key=natural)), "", "")


def natural(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """The key of the order of columns' names: numbers in them by value."""
    pieces = re.findall(r"\d+|\D+", name)
    return [(0, int(p), "") if p.isdecimal() else (1, 0, p) for p in pieces], name


def _block(name: str, values: np.ndarray, where: str) -> np.ndarray:
    """A column of numbers, or of lists or images of one size, as an array [n, ...]."""
    if values.dtype.kind != "O":
        return values
    first = next((v for v in values if not lacking(v)), None)
    if first is None:
        return np.full(len(values), np.nan)
    if isinstance(first, str | bytes):
        return values
    if isinstance(first, Number | Decimal | np.bool_):
        return _numbers(values)
    pictures = hasattr(first, "getbands")  # of PIL
    try:
        whole = np.array([np.asarray(v) for v in values])
    except ValueError as error:
        raise DataError(
            f"{where}: column '{name}' holds lists or images of different sizes; bring them to one size"
        ) from error
    if not pictures:
        return whole
    return whole[:, None] if whole.ndim == 3 else np.ascontiguousarray(whole.transpose(0, 3, 1, 2))


def _numbers(values: np.ndarray) -> np.ndarray:
    """Objects as float64, NaN where there is none; itself if one is a word."""
    if any(isinstance(v, str | bytes) for v in values):
        return values
    return np.array([np.nan if lacking(v) else float(v) for v in values])


def in_order(parts: Sequence[tuple[str, Part]]) -> tuple[list[tuple[str, Part]], tuple[str, ...]]:
    """(parts of (where, part) with their columns in the order of the first that names some, notes).

    Raises:
        DataError: two have other columns.
    """
    first, order = next(((w, p.columns) for w, p in parts if p.columns), ("", ()))
    bare = [w for w, part in parts if order and not part.columns and len(part.y)]
    shown = ", ".join(order[:5]) + (", ..." if len(order) > 5 else "")
    notes = (f"{bare[0]}: x has no names of columns; they are taken to be {shown}",) if bare else ()
    return [(w, part.ordered(order, w, first)) for w, part in parts], notes


def left_out(counts: Mapping[str, tuple[int, int]]) -> tuple[str, ...]:
    """A note of rows that lack a value, of {client: (left out, rows)}; at most 10 clients by name."""
    short = {name: (gone, n) for name, (gone, n) in counts.items() if gone}
    if not short:
        return ()
    gone, rows = (sum(pair[i] for pair in counts.values()) for i in (0, 1))
    shown = ", ".join(f"{name} {g} of {n}" for name, (g, n) in list(short.items())[:10])
    more = ", ..." if len(short) > 10 else ""
    return (f"{gone} of {rows} rows lack a value and are left out (data.missing=drop): {shown}{more}",)
