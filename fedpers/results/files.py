"""Writing files so that a reader, or a run that is killed, never meets half of one."""

import csv
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedpers.core.errors import FedpersError

Row = dict[str, Any]


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Have a folder for this process alone, where the operating system can; a kill lets go of it.

    Raises:
        FedpersError: another process has it.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # worker processes do not inherit it
        except OSError as error:
            raise FedpersError(
                f"{folder} is being written by another process; wait for it, stop it, or choose another out="
            ) from error
        yield


def replace_text(path: Path, text: str) -> None:
    """Write beside, then rename."""
    beside = path.with_name(f".{path.name}.tmp")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def replace_json(path: Path, value: Mapping[str, Any]) -> None:
    """JSON of plain values; nan and infinities, which JSON has not, become null."""
    replace_text(path, json.dumps(plain(value), indent=2) + "\n")


def replace_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """An .npz file."""
    beside = path.with_name(f".{path.name}.tmp")
    with beside.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    beside.replace(path)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """What an .npz file holds; empty if there is none."""
    if not path.is_file():
        return {}
    with np.load(path) as stored:
        return {name: stored[name] for name in stored.files}


def replace_csv(path: Path, rows: Sequence[Row], columns: Sequence[str]) -> None:
    """A table; absent and nan values are empty."""
    lines = [",".join(columns), *(_line(row, columns) for row in rows)]
    replace_text(path, "\n".join(lines) + "\n")


def append_csv(path: Path, rows: Iterable[Row], columns: Sequence[str]) -> None:
    """Add rows in one write and hand them to the operating system."""
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(_line(row, columns) + "\n" for row in rows))


def read_csv(path: Path) -> tuple[list[Row], list[str]]:
    """(rows, columns) of a table; numbers are read as such, empty cells left out.

    A last row that was cut off when its writer was killed is dropped.
    """
    text = path.read_text(encoding="utf-8")
    complete = text[: text.rfind("\n") + 1]
    lines = list(csv.reader(complete.splitlines()))
    if not lines:
        return [], []
    columns = lines[0]
    return [
        {k: _number(v) for k, v in zip(columns, cells, strict=True) if v != ""}
        for cells in lines[1:]
        if len(cells) == len(columns)
    ], columns


def _line(row: Row, columns: Sequence[str]) -> str:
    return ",".join(_cell(row.get(name)) for name in columns)


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return repr(float(value)) if isinstance(value, (float, np.floating)) else str(value)


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
    """Have everything on disk that any process wrote, where the operating system can."""
    getattr(os, "sync", lambda: None)()
