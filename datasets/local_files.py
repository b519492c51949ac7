"""Reads .npz, .csv, .tsv and .parquet files, and folders of them a split, as somebody has them.

A file is one of

- .npz with `x` and `y`, or with train_x, train_y, test_x, test_y and maybe valid_x, valid_y;
- .csv, .tsv or .parquet; the target column is named, all other columns are numbers and make up x;
- a folder with train, test and maybe valid, each one of these files (.npz with x and y).
"""

import zipfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedpers.core.arrays import SPLITS, WHOLE, Part, split_of
from fedpers.core.errors import DataError
from fedpers.core.tables import by_name, of_table
from fedpers.datasets.csv_files import Columns, read_csv

KINDS = (".npz", ".csv", ".tsv", ".parquet")
PAIRS = {WHOLE: ("x", "y")} | {s: (f"{s}_x", f"{s}_y") for s in SPLITS}  # arrays of a .npz file


def read(path: Path, target: str | None, client: str | None = None, values: bool = False) -> dict[str, Part]:
    """The parts of a file or folder by split; "all" where it has none.

    Args:
        path: the file or folder.
        target: the column of y in a table.
        client: the column, or array, that names each row's client, if it is there.
        values: the target is a value; else a class, whose name is kept as it is written.

    Raises:
        DataError: names the file, what is wrong with it and the remedy.
    """
    try:
        if path.is_dir():
            return dict(_folder(path, target, client, values))
        if path.suffix.lower() == ".npz":
            return _npz(path, client)
        return {WHOLE: _table(path, target, client, values)}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def read_one(path: Path, target: str | None, client: str, values: bool = False) -> dict[str, Part]:
    """The parts of a file or folder that is one client's.

    Raises:
        DataError: as `read`; or its rows name clients by the column `client`, which is no feature.
    """
    parts = read(path, target, client, values)
    if any(part.owner is not None for part in parts.values()):
        raise DataError(
            f"{path}: is read as one client's, and its column '{client}' names clients; leave that column "
            "out, or give one file of all clients as data.path; if it is a feature, set data.client to "
            "another name"
        )
    return parts


def unread(path: Path) -> list[str]:
    """The arrays of a .npz file that no split takes."""
    if path.suffix.lower() != ".npz":
        return []
    with np.load(path, allow_pickle=False) as file:
        names = list(file.files)
    taken = {name for pair in PAIRS.values() if set(pair) <= set(names) for name in pair}
    return [name for name in names if name not in taken]


def _folder(path: Path, target: str | None, client: str | None, values: bool) -> Iterator[tuple[str, Part]]:
    for name in SPLITS:
        files = sorted(f for f in path.iterdir() if f.is_file() and split_of(f.stem) == name)
        if len(files) > 1:
            raise DataError(f"{path}: {files[0].name} and {files[1].name} are both '{name}'; keep one")
        if files:
            parts = read(files[0], target, client, values)
            if WHOLE not in parts:
                raise DataError(f"{files[0]}: has {', '.join(parts)}; in a folder each file holds x and y")
            yield name, parts[WHOLE]


def _npz(path: Path, client: str | None) -> dict[str, Part]:
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    owner = None if client is None else arrays.get(client)
    parts = {
        s: Part(arrays[x], arrays[y], (), owner if s == WHOLE else None)
        for s, (x, y) in PAIRS.items()
        if x in arrays and y in arrays
    }
    if not parts:
        raise DataError(
            f"{path}: has {', '.join(arrays) or 'no arrays'}; expected x and y, or train_x, train_y, ..."
        )
    return parts


def _table(path: Path, target: str | None, client: str | None, values: bool) -> Part:
    words = () if target is None else (target,)
    columns = read_columns(path, (*(() if values else words), *(() if client is None else (client,))))
    return from_columns(columns, target, client, str(path))


def read_columns(path: Path, words: Collection[str] = ()) -> Columns:
    """The columns of a .csv, .tsv or .parquet file by name: `words` as they are written, others as numbers.

    Raises:
        DataError: there is no such file, or it is of another kind.
    """
    readers: dict[str, Callable[[Path, Collection[str]], Columns]]
    readers = {".csv": read_csv, ".tsv": read_csv, ".parquet": _parquet}
    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder")
    if path.suffix.lower() not in readers:
        kinds = f"a folder, {', '.join(KINDS)} or package.module:function"
        raise DataError(
            f"{path}: unknown kind of file; give {kinds} (a spreadsheet saves a table as CSV UTF-8)"
        )
    return readers[path.suffix.lower()](path, words)


def from_columns(columns: Columns, target: str | None, client: str | None, where: str) -> Part:
    """x in the order of its columns' names, y and owner of a table; `where` names it in messages.

    Raises:
        DataError: the target is not there, or another column holds no numbers.
    """
    columns = dict(columns)
    owner = None if client is None else columns.pop(client, None)
    return by_name(of_table(columns, target, where))._replace(owner=owner)


def _parquet(path: Path, words: Collection[str]) -> Columns:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise DataError(f"{path}: needs pyarrow: pip install pyarrow") from error
    try:
        with parquet.ParquetFile(path) as file:
            table = file.read()
    except ArrowException as error:
        raise ValueError(str(error)) from error
    return {name: _column(table.column(name), name in words) for name in table.column_names}


def _column(column: Any, words: bool) -> np.ndarray:
    """A column of Arrow; one with gaps keeps its type (whole numbers of 64 bits are no floats) as objects."""
    gaps = column.null_count > 0
    if str(column.type).startswith("dictionary"):
        column = column.cast(column.type.value_type)
    if (words and gaps) or str(column.type).startswith(("decimal", "bool")):
        return np.array(column.to_pylist() or [None], dtype=object)[: len(column)]
    return np.asarray(column.to_numpy())
