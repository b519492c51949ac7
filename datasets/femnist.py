"""FEMNIST: 62 classes of characters with their writers, as LEAF's json shards or as npz arrays.

Paper is 1 and ink 0, as in LEAF. Class numbers: 0-9 digits, 10-35 upper, 36-61 lower case.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.random import Generator

from fedpers.datasets.cache import Arrays, cached
from fedpers.datasets.config import DataConfig
from fedpers.datasets.raw import Raw, damaged, missing


@dataclass(frozen=True)
class Half:
    """The training or the test part."""

    x: np.ndarray  # [n, 1, 28, 28] bytes
    y: np.ndarray
    writer: np.ndarray  # [n] names


def find(folder: Path) -> tuple[list[Path], list[Path]]:
    """Files of the training and of the test part: *_train.npz and *_test.npz, else LEAF's json."""
    npz = sorted(folder.glob("*_train.npz")), sorted(folder.glob("*_test.npz"))
    return npz if npz[0] else (sorted(folder.glob("train/*.json")), sorted(folder.glob("test/*.json")))


def read(path: Path, root: Path) -> Half:
    """One file of either kind.

    Raises:
        DataError: the file is cut short or holds something else.
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
    pixels = np.concatenate([np.array(u["x"], dtype=np.float64) for u in users.values()])
    return Half(
        np.rint(pixels * 255).astype(np.uint8).reshape(-1, 1, 28, 28),
        np.concatenate([np.array(u["y"], dtype=np.int64) for u in users.values()]),
        np.concatenate([np.full(len(u["y"]), name) for name, u in users.items()]),
    )


def decode(train: list[Path], test: list[Path], root: Path) -> Arrays:
    """Both parts; writers are numbered in the order of their names."""
    halves = [[read(path, root) for path in paths] for paths in (train, test)]
    x, y, writer = (
        [np.concatenate([getattr(h, key) for h in half]) for half in halves] for key in ("x", "y", "writer")
    )
    names = np.unique(np.concatenate(writer))
    owner = [np.searchsorted(names, w) for w in writer]
    return {"x": x[0], "test_x": x[1], "y": y[0], "test_y": y[1], "owner": owner[0], "test_owner": owner[1]}


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
        62,
        owner=arrays["owner"],
        test_owner=arrays["test_owner"],
    )
