"""Tables of text, as programs and spreadsheets write them."""

import csv
import io
import re
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np

from fedpers.core.targets import ABSENT, NUMBER

Columns = dict[str, np.ndarray]
SEPARATORS = (",", ";", "\t")
DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
TOLD = re.compile(r"sep=([,;\t])\r?\n")
TRUTH = {"true": 1.0, "false": 0.0}


def read_csv(path: Path, words: Collection[str] = ()) -> Columns:
    """The columns by name: those of `words` as text, "" where there is none; the others as numbers.

    Fields are separated by commas, semicolons or tabs, whichever the first line has, or which Excel's sep=
    names there. Where it is no comma, one may stand for the decimal point. A byte order mark is no name's.

    Raises:
        ValueError: what is wrong with the file.
    """
    text = _text(path)
    said = TOLD.match(text)  # by Excel: sep=; in a line of its own
    text = (text[said.end() :] if said else text).lstrip("\r\n")
    separator = said[1] if said else max(SEPARATORS, key=lambda mark: len(next(_rows(text, mark), [])))
    names, *rows = [row for row in _rows(text, separator) if row] or [[]]  # without blank lines
    if not names:
        raise ValueError("it is empty: not even a line with the names of columns")
    names = [name.strip() for name in names]
    if uneven := [(i, len(row)) for i, row in enumerate(rows, 1) if len(row) != len(names)]:
        row, found = uneven[0]
        raise ValueError(f"row {row} has {found} fields and the first line {len(names)} names")
    if len(set(names)) < len(names):
        raise ValueError(f"two columns are called '{next(n for n in names if names.count(n) > 1)}'")
    cells = zip(*rows, strict=True) if rows else [()] * len(names)
    columns = {name: [v.strip() for v in values] for name, values in zip(names, cells, strict=True)}
    comma = separator != "," and _has_decimal_commas(columns, words)
    return {n: np.array(v, dtype=str) if n in words else _numbers(v, comma) for n, v in columns.items()}


def _text(path: Path) -> str:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is no text in UTF-8 ({error.reason}); save it as CSV UTF-8") from error
    if "\0" in text:
        raise ValueError("it holds bytes that are no text; save it as CSV UTF-8")
    return text


def _rows(text: str, separator: str) -> Iterator[list[str]]:
    try:
        yield from csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
    except csv.Error as error:
        raise ValueError(str(error)) from error


def _has_decimal_commas(columns: dict[str, list[str]], words: Collection[str]) -> bool:
    """Whether numbers have commas for points.

    Raises:
        ValueError: some have a comma and others a point, so one of them may separate thousands.
    """
    values = [v for name, column in columns.items() if name not in words for v in column]
    comma = next((v for v in values if DECIMAL_COMMA.fullmatch(v)), None)
    point = next((v for v in values if "." in v and NUMBER.fullmatch(v)), None)
    if comma is not None and point is not None:
        raise ValueError(f"'{comma}' has a decimal comma and '{point}' a decimal point; write all alike")
    return comma is not None


def _numbers(values: list[str], comma: bool) -> np.ndarray:
    """A column's numbers, or its words if one is no number; NaN or "" where there is no value."""
    there = [v.lower() not in ABSENT for v in values]
    plain = [v.replace(",", ".") if DECIMAL_COMMA.fullmatch(v) else v for v in values] if comma else values
    try:
        return np.array([_number(v) if t else np.nan for v, t in zip(plain, there, strict=True)], dtype=float)
    except ValueError:
        return np.array([v if t else "" for v, t in zip(values, there, strict=True)])


def _number(value: str) -> float:
    if "_" in value:  # Python reads 1_000
        raise ValueError(value)
    truth = TRUTH.get(value.lower())
    return float(value) if truth is None else truth
