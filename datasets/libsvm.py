"""LIBSVM text files: convex problems with two classes (or more), dense floating point features."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

from fedpers.core.errors import DataError
from fedpers.datasets.cache import Arrays, cached
from fedpers.datasets.config import DataConfig
from fedpers.datasets.raw import Raw, damaged, missing

# The files leave out features that are 0 in all their samples; these are the numbers of the sets.
FEATURES = {
    **{f"a{i}a": 123 for i in range(1, 10)},
    **{f"w{i}a": 300 for i in range(1, 9)},
    "mushrooms": 112,
    "phishing": 68,
    "ijcnn1": 22,
    "covtype": 54,
    "gisette_scale": 5000,
}


def load(cfg: DataConfig, rng: Generator) -> Raw:
    """The file root/libsvm/<data.file> and, if there is one, its test part <data.file>.t.

    Two classes become 0 (the smaller label in the file) and 1, for task "binary".
    """
    root, name = cfg.folder(), cfg.file or ""
    path = root / "libsvm" / name
    if not path.is_file():
        raise missing("libsvm", root, path)
    test = path.with_name(f"{name}.t")
    files = [path, test] if test.is_file() else [path]
    arrays = cached(f"libsvm-{name}", root, files, lambda: decode(files, FEATURES.get(name)))
    classes = int(arrays["y"].max()) + 1
    return Raw(
        "libsvm",
        arrays["x"],
        arrays["y"],
        arrays["test_x"],
        arrays["test_y"],
        classes,
        task="binary" if classes == 2 else "classification",
    )


def decode(files: list[Path], features: int | None) -> Arrays:
    """Dense arrays of the training file and, if given, the test file."""
    parts = _parse(files, features)
    labels = np.unique(parts[1])
    if len(labels) < 2:
        raise DataError(f"{files[0]} has the one label {labels[0]:g}; two classes are needed")
    out: Arrays = {}
    for prefix, x, y in zip(("", "test_"), parts[::2], parts[1::2], strict=False):
        strange = np.setdiff1d(y, labels)
        if len(strange):
            raise DataError(f"{files[1]} has the label {strange[0]:g}, {files[0]} has not")
        out[f"{prefix}x"] = x.toarray().astype(np.float32)
        out[f"{prefix}y"] = np.searchsorted(labels, y).astype(np.int64)
    return {"test_x": out["x"][:0], "test_y": out["y"][:0], **out}


def _parse(files: list[Path], features: int | None) -> list[Any]:
    """Sparse samples, labels of each file; features count from 0 if any file has an index 0, else from 1."""
    from sklearn.datasets import load_svmlight_files as read

    try:
        parts = read([str(f) for f in files], zero_based=True)
        if not any((x.indices == 0).any() for x in parts[::2]):
            parts[::2] = [x[:, 1:] for x in parts[::2]]
        found = int(parts[0].shape[1])
        if found == 0 or found > (features or found):
            raise ValueError(f"{found} features" + (f", the set has {features}" if features else ""))
    except ValueError as error:
        names, root = " and ".join(f.name for f in files), files[0].parents[1]  # <root>/libsvm/<file>
        expected = f"'label index:value ...' lines in {names}"
        raise damaged(files[0], expected, str(error), "libsvm", root) from error
    for x in parts[::2]:
        x.resize(x.shape[0], features or found)
    return list(parts)
