"""scikit-learn's handwritten digits: 1,797 images of 8x8, in the package itself."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.random import Generator

from fedpers.datasets.config import DataConfig
from fedpers.datasets.raw import Raw


def load(cfg: DataConfig, rng: Generator) -> Raw:
    """The digits, their 17 grey levels scaled to [0, 1]; there is no test part of their own."""
    x, y = _table()
    x = (x / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    return Raw("digits", x, y.astype(np.int64), x[:0], y[:0].astype(np.int64), num_classes=10)


def _table() -> tuple[np.ndarray, np.ndarray]:
    """Grey levels [1797, 64] and digits [1797].

    From the package's file: importing the package takes longer than all else before the first round.
    """
    found = find_spec("sklearn")
    for folder in (found and found.submodule_search_locations) or ():
        if (path := Path(folder) / "datasets" / "data" / "digits.csv.gz").exists():
            table = np.loadtxt(path, delimiter=",")
            return table[:, :-1], table[:, -1]
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return x, y
