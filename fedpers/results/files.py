"""Files of a run directory, written so that a reader, or a killed run, never sees half of one."""

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedpers.core.errors import FedpersError

CsvRow = dict[str, Any]  # {column: value}; a column without a value is absent
TEXTS = ("name", "split")  # columns that hold no numbers, whatever they look like
SPECIAL = set(',"\r\n')  # what a cell with quotation marks around it may hold


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold a folder's lock file, where the operating system has locks; a killed process lets go of it.

    Raises:
        FedpersError: another process holds it.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with (folder / ".lock").open("a") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # worker processes do not inherit it
        except OSError as error:
            raise FedpersError(
                f"{folder} is being written by another process; wait for it, stop it, or choose another out="
            ) from error
        yield


def replace_bytes(path: Path, content: bytes) -> None:
    """Write a file beside `path`, then rename it to `path`."""
    beside = path.with_name(f".{path.name}.tmp")
    beside.write_bytes(content)
    beside.replace(path)


def replace_text(path: Path, text: str) -> None:
    """Write UTF-8 text as `replace_bytes` does."""
    replace_bytes(path, text.encode())


def replace_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write JSON; nan and infinities, which JSON does not have, become null."""
    replace_text(path, json.dumps(plain(value), indent=2) + "\n")


def replace_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a compressed .npz file."""
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    replace_bytes(path, content.getvalue())


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file; empty if there is no file."""
    if not path.is_file():
        return {}
    with np.load(path) as stored:
        return dict(stored)


def replace_csv(path: Path, rows: Iterable[CsvRow], columns: Sequence[str]) -> None:
    """Write a table; absent, None and nan values become empty cells."""
    replace_text(path, ",".join(columns) + "\n" + _lines(rows, columns))


def append_csv(path: Path, rows: Iterable[CsvRow], columns: Sequence[str]) -> None:
    """Append rows in one write and hand them to the operating system."""
    with path.open("a", encoding="utf-8") as file:
        file.write(_lines(rows, columns))


def read_csv(path: Path) -> tuple[list[CsvRow], list[str]]:
    """(rows, columns) of a table: numbers as int or float but in TEXTS, empty cells left out.

    A last line that was cut off when its writer was killed is dropped.
    """
    text = path.read_text(encoding="utf-8")
    columns, *lines = list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1], newline=""))) or [[]]
    whole = [cells for cells in lines if len(cells) == len(columns)]
    return [
        {k: v if k in TEXTS else _number(v) for k, v in zip(columns, cells, strict=True) if v}
        for cells in whole
    ], columns


def _lines(rows: Iterable[CsvRow], columns: Sequence[str]) -> str:
    return "".join(",".join(_cell(row.get(name)) for name in columns) + "\n" for row in rows)


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, (float, np.floating)):
        return repr(float(value))
    text = str(value)
    return '"' + text.replace('"', '""') + '"' if SPECIAL & set(text) else text


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def plain(value: Any) -> Any:
    """What JSON can hold: NumPy's values as Python's, nan and infinities as None, the rest as text."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (np.generic, np.ndarray)):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def flush_files() -> None:
    """Have the operating system write out what any process wrote, where it has `sync`."""
    if hasattr(os, "sync"):
        os.sync()


def series(rows: Sequence[CsvRow], split: str, name: str) -> tuple[list[int], list[float]]:
    """(rounds, values) of a column of one split, where it has values."""
    found = {r["round"]: float(r[name]) for r in rows if r["split"] == split and name in r}
    return list(found), list(found.values())
