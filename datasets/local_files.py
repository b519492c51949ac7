"""Reads .npz, .csv and .parquet files, and folders of them a split, as somebody has them.

A file is one of

- .npz with `x` and `y`, or with train_x, train_y, test_x, test_y and maybe valid_x, valid_y;
- .csv or .parquet; the target column is named, all other columns are numbers and make up x;
- a folder with train, test and maybe valid, each one of these files (.npz with x and y).
"""

import csv
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from fedpers.core.arrays import SPLITS, WHOLE, Part, of_table
from fedpers.core.errors import DataError

Columns = dict[str, np.ndarray]
ABSENT = {"", "?", "na", "n/a", "nan", "none", "null"}  # what stands for no value in a .csv, in any case
KINDS = (".npz", ".csv", ".parquet")


def read(path: Path, target: str | None, client: str | None = None) -> dict[str, Part]:
    """The parts of a file or folder by split; "all" where it has none.

    Args:
        path: the file or folder.
        target: the column of y in a table.
        client: the column, or array, that names each row's client, if it is there.

    Raises:
        DataError: names the file, what is wrong with it and the remedy.
    """
    try:
        if path.is_dir():
            return dict(_folder(path, target, client))
        if path.suffix.lower() == ".npz":
            return _npz(path, client)
        return {WHOLE: _table(path, target, client)}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _folder(path: Path, target: str | None, client: str | None) -> Iterator[tuple[str, Part]]:
    for name in SPLITS:
        files = sorted(f for f in path.glob(f"{name}.*") if f.is_file())
        if len(files) > 1:
            raise DataError(f"{path}: {files[0].name} and {files[1].name} are both '{name}'; keep one")
        if files:
            parts = read(files[0], target, client)
            if WHOLE not in parts:
                raise DataError(f"{files[0]}: has {', '.join(parts)}; in a folder each file holds x and y")
            yield name, parts[WHOLE]


def _npz(path: Path, client: str | None) -> dict[str, Part]:
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    owner = arrays.get(client or "")
    found = {WHOLE: ("x", "y")} | {s: (f"{s}_x", f"{s}_y") for s in SPLITS}
    parts = {
        s: Part(arrays[x], arrays[y], (), owner if s == WHOLE else None)
        for s, (x, y) in found.items()
        if x in arrays and y in arrays
    }
    if not parts:
        raise DataError(
            f"{path}: has {', '.join(arrays) or 'no arrays'}; expected x and y, or train_x, train_y, ..."
        )
    return parts


def _table(path: Path, target: str | None, client: str | None) -> Part:
    return from_columns(read_columns(path), target, client, str(path))


def read_columns(path: Path) -> Columns:
    """The columns of a .csv or .parquet file by name.

    Raises:
        DataError: there is no such file, or it is of another kind.
    """
    readers: dict[str, Callable[[Path], Columns]] = {".csv": _csv, ".parquet": _parquet}
    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder")
    if path.suffix.lower() not in readers:
        kinds = "a folder, .npz, .csv, .parquet or package.module:function"
        raise DataError(f"{path}: unknown kind of file; give {kinds}")
    return readers[path.suffix.lower()](path)


def from_columns(columns: Columns, target: str | None, client: str | None, where: str) -> Part:
    """x, y and owner of a table's columns; `where` names it in messages.

    Raises:
        DataError: the target is not there, or another column holds no numbers.
    """
    columns = dict(columns)
    owner = columns.pop(client or "", None)
    return of_table(columns, target, where)._replace(owner=owner)


def _csv(path: Path) -> Columns:
    with path.open(newline="", encoding="utf-8") as file:
        names, *rows = list(csv.reader(file)) or [[]]
    rows = [row for row in rows if row]  # blank lines
    if not names or any(len(row) != len(names) for row in rows):
        raise ValueError("its rows have not as many fields as its first line has names")
    if len(set(names)) < len(names):
        raise ValueError(f"two columns are called '{next(n for n in names if names.count(n) > 1)}'")
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    return {name: _numbers(values) for name, values in zip(names, columns, strict=True)}


def _numbers(values: tuple[str, ...]) -> np.ndarray:
    """A column's numbers, or its words if one is no number; NaN or "" where there is no value."""
    there = [v.strip().lower() not in ABSENT for v in values]
    try:
        return np.array([float(v) if t else np.nan for v, t in zip(values, there, strict=True)])
    except ValueError:
        return np.array([v.strip() if t else "" for v, t in zip(values, there, strict=True)])


def _parquet(path: Path) -> Columns:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise DataError(f"{path}: needs pyarrow: pip install 'fedpers[parquet]'") from error
    try:
        table = parquet.read_table(path)
    except ArrowException as error:
        raise ValueError(str(error)) from error
    return {name: table.column(name).to_numpy() for name in table.column_names}
