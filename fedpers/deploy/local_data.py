"""The data of one client on its own device: files, or what a function of the device's owner returns.

A source is one of

- an .npz file with `x` and `y`, or with train_x, train_y, test_x, test_y and maybe valid_x, valid_y;
- a .csv or .parquet file; the target column is named, all other columns are numbers and make up x;
- a folder with train, test and maybe valid, each one of these files (.npz with x and y);
- `package.module:function`; the function takes nothing and returns (x, y), or {"train": (x, y), ...}.

Without given splits the samples are cut by data.test_fraction and data.valid_fraction.
"""

import csv
import importlib
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedpers.core.data import ClientData, Data
from fedpers.core.errors import DataError
from fedpers.datasets.config import DataConfig

Pair = tuple[np.ndarray, np.ndarray]  # x [n, ...], y [n]
Splits = dict[str, Pair]
Columns = dict[str, np.ndarray]
WHOLE, TRAIN, VALID, TEST = "all", "train", "valid", "test"
SPLITS = (TRAIN, VALID, TEST)


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
    splits = _call(source) if _is_entry_point(source) else _read(Path(source).expanduser(), target)
    if WHOLE in splits:
        splits = _cut(*splits[WHOLE], cfg, seed, source)
    parts = {name: _checked(*pair, cfg, f"{source} ({name})") for name, pair in splits.items()}
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


def _read(path: Path, target: str | None) -> Splits:
    try:
        if path.is_dir():
            return dict(_folder(path, target))
        if path.suffix == ".npz":
            return _npz(path)
        return {WHOLE: _table(path, target)}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _folder(path: Path, target: str | None) -> Iterator[tuple[str, Pair]]:
    for name in SPLITS:
        files = sorted(f for f in path.glob(f"{name}.*") if f.is_file())
        if len(files) > 1:
            raise DataError(f"{path}: {files[0].name} and {files[1].name} are both '{name}'; keep one")
        if files:
            pairs = _read(files[0], target)
            if WHOLE not in pairs:
                raise DataError(f"{files[0]}: has {', '.join(pairs)}; in a folder each file holds x and y")
            yield name, pairs[WHOLE]


def _npz(path: Path) -> Splits:
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    found = {WHOLE: ("x", "y")} | {s: (f"{s}_x", f"{s}_y") for s in SPLITS}
    pairs = {s: (arrays[x], arrays[y]) for s, (x, y) in found.items() if x in arrays and y in arrays}
    if not pairs:
        raise DataError(
            f"{path}: has {', '.join(arrays) or 'no arrays'}; expected x and y, or train_x, train_y, ..."
        )
    return pairs


def _table(path: Path, target: str | None) -> Pair:
    readers: dict[str, Callable[[Path], Columns]] = {".csv": _csv, ".parquet": _parquet}
    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder")
    if path.suffix not in readers:
        kinds = "a folder, .npz, .csv, .parquet or package.module:function"
        raise DataError(f"{path}: unknown kind of file; give {kinds}")
    columns = readers[path.suffix](path)
    if target not in columns:
        names = ", ".join(list(columns)[:20])
        raise DataError(f"{path}: no target column '{target}'; there are {names}. Name it: target=\"...\"")
    words = [name for name, values in columns.items() if values.dtype.kind not in "fiub"]
    if words:
        raise DataError(f"{path}: {', '.join(words)} hold no numbers; encode or drop these columns")
    y = columns.pop(target)
    return np.column_stack(list(columns.values())) if columns else np.zeros((len(y), 0)), y


def _csv(path: Path) -> Columns:
    with path.open(newline="", encoding="utf-8") as file:
        names, *rows = list(csv.reader(file)) or [[]]
    if not names or any(len(row) != len(names) for row in rows):
        raise ValueError("its rows have not as many fields as its first line has names")
    return {name: _numbers(values) for name, values in zip(names, zip(*rows, strict=True), strict=False)}


def _numbers(values: tuple[str, ...]) -> np.ndarray:
    try:
        return np.array([float(v) if v else np.nan for v in values])
    except ValueError:
        return np.array(values)


def _parquet(path: Path) -> Columns:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise DataError(f"{path}: needs pyarrow: pip install 'fedpers[parquet]'") from error
    try:
        table = parquet.read_table(path)
    except ArrowException as error:
        raise ValueError(str(error)) from error
    return {name: table.column(name).to_numpy() for name in table.column_names}


# ---- whether it fits ----------------------------------------------------------------------------


def _cut(x: np.ndarray, y: np.ndarray, cfg: DataConfig, seed: int, source: str) -> Splits:
    """Test, then validation, then training samples of one random order."""
    n = len(y)
    if x.ndim < 1 or len(x) != n:
        raise DataError(f"{source}: x has {len(x) if x.ndim else 0} rows and y {n}; give one y a row")
    tests = max(1, int(cfg.test_fraction * n))
    valids = int(cfg.valid_fraction * (n - tests))
    order = np.random.Generator(np.random.PCG64([seed])).permutation(n)
    rows = dict(zip((TEST, VALID, TRAIN), np.split(order, [tests, tests + valids]), strict=True))
    return {name: (x[index], y[index]) for name, index in rows.items()}


def _checked(x: np.ndarray, y: np.ndarray, cfg: DataConfig, where: str) -> Pair:
    if x.dtype == object or not np.issubdtype(x.dtype, np.number):
        raise DataError(f"{where}: x is of type {x.dtype}; give numbers")
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
