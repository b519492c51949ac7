"""scikit-learn's tables that come in the package itself: one of classes, one of values."""

import numpy as np
from numpy.random import Generator

from fedpers.datasets.config import DataConfig
from fedpers.datasets.raw import Raw


def load(cfg: DataConfig, rng: Generator) -> Raw:
    """breast_cancer: 569 x 30, two classes; diabetes: 442 x 10, progression after a year, standardised."""
    from sklearn.datasets import load_breast_cancer, load_diabetes

    regression = cfg.name == "diabetes"
    table = (load_diabetes if regression else load_breast_cancer)()
    x, y = table.data.astype(np.float32), table.target
    y = (y - y.mean()) / y.std() if regression else y.astype(np.int64)
    classes, task = (1, "regression") if regression else (2, "binary")
    columns = tuple(map(str, table.feature_names))
    target = None if regression else "target"  # the values are standardised, those of another table are not
    return Raw(cfg.name, x, y, x[:0], y[:0], classes, task, columns=columns, target=target)
