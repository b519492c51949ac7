"""FEMNIST: 62 classes of characters with their writers, as LEAF's json shards or as npz arrays.

Paper is 1 and ink 0, as in LEAF. Class numbers: 0-9 digits, 10-35 upper, 36-61 lower case.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

from fedpers.core.errors import DataError
from fedpers.datasets.cache import Arrays, cached
from fedpers.datasets.config import DataConfig
from fedpers.datasets.raw import Raw, damaged, missing

CLASSES = 62


@dataclass(frozen=True)
class Half:
    """The training or the test part."""

    x: np.ndarray  # [n, 1, 28, 28] bytes
    y: np.ndarray
    writer: np.ndarray  # [n] names
    empty: int = 0  # users without samples


def find(folder: Path) -> tuple[list[Path], list[Path]]:
    """Files of the training and of the test part: *_train.npz and *_test.npz, else LEAF's json."""
    npz = sorted(folder.glob("*_train.npz")), sorted(folder.glob("*_test.npz"))
    return npz if npz[0] else (sorted(folder.glob("train/*.json")), sorted(folder.glob("test/*.json")))


def read(path: Path, root: Path) -> Half:
    """One file of either kind.

    Raises:
        DataError: the file is cut short or holds something else, or a label or pixel is out of its range.
    """
    try:
        return _read_npz(path) if path.suffix == ".npz" else _read_json(path)
    except (ValueError, KeyError, OSError, EOFError) as error:
        kind = "LEAF json" if path.suffix == ".json" else "arrays x, y, writer, writers"
        size = path.stat().st_size
        raise damaged(path, kind, f"{error} in {size} bytes", "femnist", root) from error


def _read_npz(path: Path) -> Half:
    with np.load(path, allow_pickle=False) as data:
        return Half(data["x"][:, None], data["y"].astype(np.int64), data["writers"][data["writer"]])


def _read_json(path: Path) -> Half:
    users = json.loads(path.read_text())["user_data"]
    filled = {name: user for name, user in users.items() if len(user["x"]) or len(user["y"])}
    kept = {name: _samples(user, f"{path}, user '{name}'") for name, user in filled.items()}
    x = [pixels for pixels, _ in kept.values()] or [np.empty((0, 1, 28, 28), dtype=np.uint8)]
    y = [labels for _, labels in kept.values()] or [np.empty(0, dtype=np.int64)]
    names = np.repeat(np.array(list(kept), dtype=str), [len(labels) for _, labels in kept.values()])
    return Half(np.concatenate(x), np.concatenate(y), names, len(users) - len(kept))


def _samples(user: dict[str, list[Any]], where: str) -> tuple[np.ndarray, np.ndarray]:
    """Bytes [n, 1, 28, 28] and class numbers [n] of one user."""
    x, y = np.array(user["x"], dtype=np.float64), np.array(user["y"])
    if x.shape != (len(y), 784) or y.ndim != 1:
        raise ValueError(f"x of {x.shape} and y of {y.shape} in {where}")
    if not (x.min() >= 0 and x.max() <= 1):
        raise DataError(f"{where}: has pixels from {x.min():g} to {x.max():g}; LEAF's are 0 to 1")
    strange = y[~np.isin(y, np.arange(CLASSES))]
    if len(strange):
        raise DataError(f"{where}: has the label {strange[0]}; FEMNIST's classes are 0 to {CLASSES - 1}")
    return np.rint(x * 255).astype(np.uint8).reshape(-1, 1, 28, 28), y.astype(np.int64)


def decode(train: list[Path], test: list[Path], root: Path) -> Arrays:
    """Both parts; writers are numbered in the order of their names."""
    halves = [[read(path, root) for path in paths] for paths in (train, test)]
    x, y, writer = (
        [np.concatenate([getattr(h, key) for h in half]) for half in halves] for key in ("x", "y", "writer")
    )
    names = np.unique(np.concatenate(writer))
    owner = [np.searchsorted(names, w) for w in writer]
    both = {"x": x[0], "test_x": x[1], "y": y[0], "test_y": y[1], "owner": owner[0], "test_owner": owner[1]}
    return {**both, "empty": np.array([sum(h.empty for h in half) for half in halves])}


def load(cfg: DataConfig, rng: Generator) -> Raw:
    """Images [n, 1, 28, 28] by writer; data.file names a folder under femnist/ (null: itself)."""
    root = cfg.folder()
    folder = root / "femnist" / (cfg.file or "")
    train, test = find(folder)
    if not train or not test:
        raise missing("femnist", root, folder / ("test" if train else "train"))
    arrays = cached("femnist", root, [*train, *test], lambda: decode(train, test, root))
    return Raw(
        "femnist",
        arrays["x"],
        arrays["y"],
        arrays["test_x"],
        arrays["test_y"],
        CLASSES,
        owner=arrays["owner"],
        test_owner=arrays["test_owner"],
        notes=_passed_over(arrays.get("empty", np.zeros(2, dtype=np.int64))),
    )


def _passed_over(empty: np.ndarray) -> tuple[str, ...]:
    """A note of users without samples in the training and the test part."""
    counts = f"{empty[0]} in the training part, {empty[1]} in the test part"
    return (f"users without samples are passed over: {counts}",) if empty.any() else ()
