"""Reads new rows for a trained model; rows that differ in form from its training data are refused."""

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedpers.core.arrays import WHOLE, Part
from fedpers.core.errors import DataError
from fedpers.core.pixels import white
from fedpers.core.tables import natural
from fedpers.core.targets import class_name
from fedpers.datasets.image_folders import find, read_images
from fedpers.datasets.local_files import Columns, from_columns, read_columns
from fedpers.datasets.pictures import KINDS, Look, colour_for, read
from fedpers.deploy.local_data import Expected, shaped, targets

TABLES = (".csv", ".tsv", ".parquet")
NOWHERE = "\0"  # a column that no table has


def read_rows(
    path: Path, columns: Sequence[str], target: str | None, expected: Expected, unread: Sequence[str] = ()
) -> tuple[np.ndarray, np.ndarray | None]:
    """(x [n, *input_shape], y [n] or None) of new rows; y as numbers of classes, or values.

    Args:
        path: .csv, .tsv, .parquet, .npy with x, .npz with x and maybe y, an image, or a folder of
            images, which may lie in folders of classes.
        columns: names of x's columns, in the order of training; empty if they had none.
        target: the column of y, which may be missing.
        expected: what the model takes and answers.
        unread: columns that may be there and say nothing, such as that of the client.

    Raises:
        DataError: other columns, another shape, other classes, or a file that cannot be read.
    """
    try:
        x, y = _read(path, columns, target, expected, unread)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not len(x):
        raise DataError(f"{path}: has no rows; give it some")
    if y is not None and (y.ndim < 1 or len(y) != len(x)):
        raise DataError(f"{path}: x is {x.shape} and y {y.shape}; give one y for each row of x")
    found = shaped(x, expected, str(path))
    _check_kind(found, expected.kind, str(path))
    return found, None if y is None else targets(y, expected, str(path))


def _read(
    path: Path, columns: Sequence[str], target: str | None, expected: Expected, unread: Sequence[str]
) -> tuple[np.ndarray, np.ndarray | None]:
    suffix = path.suffix.lower()
    if path.is_dir() or suffix in KINDS:
        return _images(path, expected)
    if suffix in (".npy", ".npz") and len(columns) > 1:
        raise DataError(
            f"{path}: x has no names of columns, and the model knows {_some(columns)}; "
            "give .csv, .tsv or .parquet"
        )
    if suffix == ".npy":
        return np.load(path, allow_pickle=False), None
    if suffix == ".npz":
        return _npz(path)
    words = (target,) if target and expected.task != "regression" else ()
    return _table(read_columns(path, words), columns, target, unread, str(path))


def _npz(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    if "x" not in arrays:
        raise DataError(f"{path}: has {', '.join(arrays) or 'no arrays'}; expected x, and y if it is known")
    return arrays["x"], arrays.get("y")


def _images(path: Path, expected: Expected) -> tuple[np.ndarray, np.ndarray | None]:
    look = Look.of(expected.image_size, colour_for(expected.input_shape))
    if path.is_file():
        return read([path], look), None
    images, others = find(path)
    bare = [file for file in others if file.suffix.lower() in KINDS]
    if bare and images:
        raise DataError(f"{path}: has images in folders and beside them ({bare[0].name}); give one of them")
    if bare:
        return read(bare, look), None
    if not images:
        raise DataError(f"{path}: holds no images; give a file, or a folder of images")
    clients = read_images(path, images, look)
    if set(clients) != {""} or set(clients[""]) != {WHOLE}:
        names = sorted(set(clients) - {""}) or sorted(clients[""])
        raise DataError(f"{path}: holds folders of {', '.join(names)}; name the one whose images are meant")
    part: Part = clients[""][WHOLE]
    return part.x, part.y


def _table(
    table: Columns, columns: Sequence[str], target: str | None, unread: Sequence[str], where: str
) -> tuple[np.ndarray, np.ndarray | None]:
    y = table.pop(target or NOWHERE, None)
    wanted = {c if c in table else c.rpartition(".")[0] or c for c in columns}  # lists: pixels.0, pixels.1
    kept = {c: v for c, v in table.items() if c in wanted or c not in unread}
    if columns and wanted != set(kept):
        missing = sorted(wanted - kept.keys())
        odd = sorted(c or "one without a name" for c in kept.keys() - wanted)
        both = (f"{word} {_some(names)}" for word, names in (("no", missing), ("unknown:", odd)) if names)
        raise DataError(
            f"{where}: other columns than those of training ({'; '.join(both)}); give the same columns, "
            "made as they were for training: a category that training had not is 0 in all of its columns"
        )
    if not columns:
        _check_numbered(sorted(kept, key=natural), where)
    count = len(next(iter(kept.values()), ()))
    if not count:
        return np.zeros((0, 1)), None  # told by the caller
    part = from_columns(kept | {NOWHERE: np.zeros(count)}, NOWHERE, None, where)
    return part.ordered(tuple(columns), where, "training").x, y


def _check_numbered(names: Sequence[str], where: str) -> None:
    """Columns for a model that knows no names are in the order of training only if they are numbered."""
    stem = names[0].rstrip("0123456789") if names else ""
    numbers = [name.removeprefix(stem) for name in names]
    first = int(numbers[0]) if numbers and numbers[0].isdecimal() else 0
    if len(names) > 1 and numbers != [str(first + i) for i in range(len(names))]:
        raise DataError(
            f"{where}: the model was trained on numbers without names, so the order of {_some(names)} is not "
            "known; give .npy or .npz with x, or call the columns x0, x1, ... as they were in training; "
            "--target names the column of the answers, if there is one"
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def read_words(path: Path, column: str, words: Sequence[str]) -> np.ndarray:
    """Numbers [n, 1] of what a table's column names; other columns are not read.

    Raises:
        DataError: no such column, a name that training did not have, or a file that cannot be read.
    """
    if path.suffix.lower() not in TABLES:
        raise DataError(f"{path}: is no table; give {', '.join(TABLES)} with the column '{column}'")
    try:
        table = read_columns(path, (column,))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if column not in table:
        raise DataError(f"{path}: has no column '{column}'; it has {', '.join(table)}")
    names, number = [class_name(v) for v in table[column].tolist()], {w: i for i, w in enumerate(words)}
    if not names:
        raise DataError(f"{path}: has no rows; give it some")
    odd = next((name for name in names if name not in number), None)
    if odd is not None:
        raise DataError(f"{path}: {column} '{odd}' is none of the {len(words)} of training: {_some(words)}")
    return np.array([[number[name]] for name in names])


def _check_kind(x: np.ndarray, kind: str, where: str) -> None:
    """Pixels stay pixels, and numbers numbers."""
    pixels = white(x) != 1
    if kind == "numbers" and pixels:
        raise DataError(
            f"{where}: holds {x.dtype}, and the model was trained on numbers as they stand; give pixels as "
            "x/255 in float32, other numbers as int64"
        )
    if kind == "bytes" and not pixels and (x.min() < 0 or x.max() > 1):
        raise DataError(
            f"{where}: holds {x.dtype} from {x.min():g} to {x.max():g}, and the model was trained on pixels; "
            "give bytes (uint8), or pixels in [0, 1]"
        )
    if kind == "tokens" and ((x < 0).any() or (x != np.floor(x)).any()):
        raise DataError(f"{where}: holds {x.min():g} to {x.max():g}; tokens are whole numbers from 0")
