"""The data of one client on its own device: files, or what a function of the device's owner returns.

A source is a file or a folder that `fedpers.datasets.local_files` reads, or `package.module:function`;
the function takes nothing and returns (x, y), or {"train": (x, y), ...}.

Without given splits the samples are cut by data.test_fraction and data.valid_fraction.
"""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fedpers.core.arrays import NUMBERS, SPLITS, TEST, TRAIN, WHOLE, Pair, cut
from fedpers.core.data import ClientData, Data
from fedpers.core.errors import DataError
from fedpers.datasets.config import DataConfig
from fedpers.datasets.local_files import read, read_columns

Splits = dict[str, Pair]


def load_local(source: str, target: str | None, cfg: DataConfig, seed: int, dtype: torch.dtype) -> ClientData:
    """The three splits of this device's client.

    Args:
        source: a path, or "package.module:function".
        target: the column of y in a table.
        cfg: `input_shape`, `task`, `num_classes` that the run expects, and how to cut.
        seed: of the cut.
        dtype: of x, and of y for regression.

    Raises:
        DataError: names the source, what is wrong with it and the remedy.
    """
    splits = _call(source) if _is_entry_point(source) else _files(Path(source).expanduser(), target)
    if WHOLE in splits:
        splits = _cut(*splits[WHOLE], cfg, seed, source)
    parts = {name: checked(*pair, cfg, f"{source} ({name})") for name, pair in splits.items()}
    if TRAIN not in parts or TEST not in parts:
        raise DataError(
            f"{source}: has {', '.join(parts) or 'nothing'}; give train and test, or x and y to be cut"
        )
    for name in (TRAIN, TEST):
        if not len(parts[name][1]):
            raise DataError(f"{source}: no {name} samples; give more samples or another data.test_fraction")
    empty = parts[TRAIN][0][:0], parts[TRAIN][1][:0]
    return ClientData(*[_tensors(*parts.get(name, empty), cfg.task, dtype) for name in SPLITS])


# ---- where it comes from ------------------------------------------------------------------------


def _is_entry_point(source: str) -> bool:
    module, colon, name = source.partition(":")
    return bool(colon) and all(p.isidentifier() for p in (*module.split("."), *name.split(".")))


def _call(source: str) -> Splits:
    module, _, name = source.partition(":")
    try:
        function: Callable[[], Any] = getattr(importlib.import_module(module), name)
        found = function()
    except Exception as error:  # whatever the owner's code raises
        raise DataError(
            f"{source}: {type(error).__name__}: {error}; it must be a function without arguments"
        ) from error
    pairs = found if isinstance(found, Mapping) else {WHOLE: found}
    try:
        return {str(k): (np.asarray(x), np.asarray(y)) for k, (x, y) in pairs.items()}
    except (TypeError, ValueError) as error:
        raise DataError(
            f'{source}: returned {type(found).__name__}; return (x, y) or {{"train": (x, y), ...}}'
        ) from error


def _files(path: Path, target: str | None) -> Splits:
    return {name: (part.x, part.y) for name, part in read(path, target).items()}


def feature_names(source: str, target: str | None) -> tuple[str, ...]:
    """The names of x's columns in their order, of a table or a folder of tables; else ()."""
    if _is_entry_point(source):
        return ()
    path = Path(source).expanduser()
    if path.is_dir():
        path = next(path.glob(f"{TRAIN}.*"), path)
    if path.suffix not in (".csv", ".parquet"):
        return ()
    return tuple(name for name in read_columns(path) if name != target)


# ---- whether it fits ----------------------------------------------------------------------------


def _cut(x: np.ndarray, y: np.ndarray, cfg: DataConfig, seed: int, source: str) -> Splits:
    """Test, then validation, then training samples of one random order."""
    n = len(y)
    if x.ndim < 1 or len(x) != n:
        raise DataError(f"{source}: x has {len(x) if x.ndim else 0} rows and y {n}; give one y a row")
    rows = cut(n, cfg.test_fraction, cfg.valid_fraction, np.random.Generator(np.random.PCG64([seed])))
    return {name: (x[index], y[index]) for name, index in rows.items()}


class Expected(NamedTuple):
    """What a model takes and says."""

    input_shape: tuple[int, ...]
    task: str
    num_classes: int


def checked(x: np.ndarray, y: np.ndarray, cfg: DataConfig | Expected, where: str) -> Pair:
    """(x [n, *input_shape], y [n]) if they fit.

    Raises:
        DataError: another shape, other classes, no numbers, or NaN.
    """
    if x.dtype == object or not np.issubdtype(x.dtype, np.number):
        raise DataError(f"{where}: x is of type {x.dtype}; give numbers")
    if y.dtype.kind not in NUMBERS:
        text = f"label {str(y[0])!r} is text; number the classes from 0, alike on all devices"
        raise DataError(f"{where}: {text}")
    if y.ndim != 1 or x.ndim < 1 or len(x) != len(y):
        raise DataError(f"{where}: x is {x.shape} and y {y.shape}; expected [n, ...] and [n]")
    if int(np.prod(x.shape[1:])) != int(np.prod(cfg.input_shape)):
        raise DataError(
            f"{where}: a sample has shape {x.shape[1:]}, "
            f"the run expects data.input_shape={list(cfg.input_shape)}"
        )
    if not np.isfinite(x).all() or not np.isfinite(np.asarray(y, dtype=float)).all():
        raise DataError(f"{where}: holds NaN or infinite numbers; fill or drop these rows")
    if cfg.task != "regression":
        top = 2 if cfg.task == "binary" else cfg.num_classes
        wrong = sorted({v for v in y.tolist() if v != int(v) or not 0 <= v < top})
        if wrong:
            raise DataError(f"{where}: label {wrong[0]} is none of 0..{top - 1}; number the classes from 0")
    return x.reshape(len(x), *cfg.input_shape), y


def _tensors(x: np.ndarray, y: np.ndarray, task: str, dtype: torch.dtype) -> Data:
    whole = dtype if task == "regression" else torch.int64
    inputs, targets = torch.from_numpy(np.array(x)).to(dtype), torch.from_numpy(np.array(y)).to(whole)
    return Data(inputs, targets, torch.ones(len(y), dtype=dtype))
