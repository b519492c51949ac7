"""CIFAR-10 and CIFAR-100: the official Python batches, also when some training batches are absent.

torchvision refuses an incomplete copy and unpickles without limits; this reader checks the official
md5 (torchvision's tables) and allows nothing but arrays in the pickle.
"""

import hashlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

from fedpers.core.data import INCOMPLETE
from fedpers.core.torchvision import import_torchvision
from fedpers.datasets.cache import Arrays, cached
from fedpers.datasets.config import DataConfig
from fedpers.datasets.raw import Raw, damaged, missing

ALLOWED = {
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("_codecs", "encode"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
}
LABELS = {"cifar10": ("CIFAR10", "labels", 10), "cifar100": ("CIFAR100", "fine_labels", 100)}


class ArrayUnpickler(pickle.Unpickler):
    """Unpickles numbers, text and NumPy arrays; anything else is refused."""

    def find_class(self, module: str, name: str) -> Any:
        """Only what an array needs."""
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed in a data file")
        return super().find_class(
            module.replace("numpy.core", "numpy._core") if hasattr(np, "_core") else module, name
        )


def read_batch(path: Path, label_key: str, md5: str, name: str) -> Arrays:
    """x [n, 3, 32, 32] bytes and y [n] of one batch file.

    Raises:
        DataError: the file is not the official one.
    """
    content = path.read_bytes()
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != md5:
        root = path.parents[1]  # <root>/cifar-10-batches-py/<path>
        raise damaged(path, f"md5 {md5}", f"md5 {found} in {len(content)} bytes", name, root)
    with path.open("rb") as file:
        batch = ArrayUnpickler(file, encoding="latin1").load()
    return {"x": batch["data"].reshape(-1, 3, 32, 32), "y": np.array(batch[label_key], dtype=np.int64)}


def load(cfg: DataConfig, rng: Generator) -> Raw:
    """Images [n, 3, 32, 32]; of the training batches those that are there."""
    kind, key, classes = LABELS[cfg.name]
    official = getattr(import_torchvision().datasets, kind)
    root = cfg.folder()
    base = root / official.base_folder
    md5 = {base / name: value for name, value in official.train_list + official.test_list}
    test = [base / name for name, _ in official.test_list]
    train = [base / name for name, _ in official.train_list]
    here = [path for path in train if path.is_file()]
    for path in (*(here or train[:1]), *test):
        if not path.is_file():
            raise missing(cfg.name, root, path)

    def decode() -> Arrays:
        parts = [[read_batch(p, key, md5[p], cfg.name) for p in paths] for paths in (here, test)]
        return {
            f"{prefix}{what}": np.concatenate([b[what] for b in part])
            for prefix, part in zip(("", "test_"), parts, strict=True)
            for what in ("x", "y")
        }

    arrays = cached(cfg.name, root, [*here, *test], decode)
    notes = (
        ()
        if len(here) == len(train)
        else (
            f"{INCOMPLETE}: {len(here)} of {len(train)} training batches, "
            f"{len(arrays['y']):,} training images; accuracies are below those published for all",
        )
    )
    return Raw(cfg.name, arrays["x"], arrays["y"], arrays["test_x"], arrays["test_y"], classes, notes=notes)
