"""The data of one client on its own device: files, or what a function of the device's owner returns.

A source is a file or a folder that `fedpers.datasets.local_files` reads, or `package.module:function`;
the function takes nothing and returns (x, y), or {"train": (x, y), ...}; a table may stand for (x, y).

Without given splits the samples are cut by data.test_fraction and data.valid_fraction.
"""

import importlib
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fedpers.core.arrays import NUMBERS, SPLITS, TEST, TRAIN, WHOLE, Pair, Part, native, usable
from fedpers.core.data import ClientData, Data
from fedpers.core.errors import DataError
from fedpers.core.given import part_of
from fedpers.core.moments import Moments
from fedpers.core.pipeline import Pipeline
from fedpers.core.pixels import channels_first, fitted, white
from fedpers.core.tables import by_name, in_order
from fedpers.core.targets import class_name, plain
from fedpers.core.tasks import TASKS
from fedpers.datasets.config import DataConfig
from fedpers.datasets.cuts import own_splits
from fedpers.datasets.image_folders import Found, find, left_out, read_images
from fedpers.datasets.local_files import read_one
from fedpers.datasets.pictures import Look, colour_for

log = logging.getLogger("fedpers")
Splits = dict[str, Part]


class Local(NamedTuple):
    """One client's data on its device."""

    data: ClientData
    columns: tuple[str, ...]  # names of x's columns in their order, of a table
    left_out: int  # rows without a value
    moments: Moments | None  # of the training samples, where data.standardise asks for them
    kind: str = "numbers"  # of the samples as they are stored, one of pipeline.KINDS


def load_local(source: str, target: str | None, cfg: DataConfig, seed: int, dtype: torch.dtype) -> ClientData:
    """The splits that `local` finds."""
    return local(source, target, cfg, seed, dtype).data


def local(
    source: str,
    target: str | None,
    cfg: DataConfig,
    seed: int,
    dtype: torch.dtype,
    pipeline: Pipeline = Pipeline(),  # noqa: B008  (it cannot change)
) -> Local:
    """The three splits of this device's client, as a simulation that reads the same files has them.

    Args:
        source: a path, or "package.module:function".
        target: the column of y in a table.
        cfg: `input_shape`, `task`, `num_classes` that the run expects, and how to cut.
        seed: of the cut.
        dtype: of x, and of y for regression.
        pipeline: what all devices of the run agreed on.

    Raises:
        DataError: names the source, what is wrong with it and the remedy.
    """
    path = Path(source).expanduser()
    found = _call(source, target) if is_entry_point(source) else _files(path, target, cfg)
    named, _ = in_order([(f"{source} ({name})", part) for name, part in found.items()])
    splits = {name: (where, part) for name, (where, part) in zip(found, named, strict=True)}
    kept = {name: _kept(part, where, cfg) for name, (where, part) in splits.items()}
    parts = {name: checked(part.x, part.y, cfg, splits[name][0]) for name, part in kept.items()}
    if WHOLE not in parts and not {TRAIN, TEST} <= set(parts):
        raise DataError(
            f"{source}: has {', '.join(parts) or 'nothing'}; give train and test, or x and y to be split"
        )
    cuts = own_splits({name: len(y) for name, (_, y) in parts.items()}, cfg, seed)
    for name in (TRAIN, TEST):
        if not len(cuts[name][1]):
            raise DataError(f"{source}: no {name} samples; give more samples or another data.test_fraction")
    chosen = {name: (parts[of][0][rows], parts[of][1][rows]) for name, (of, rows) in cuts.items()}
    empty = chosen[TRAIN][0][:0], chosen[TRAIN][1][:0]
    columns = next((part.columns for _, part in named if part.columns), ())
    _check_columns(columns, pipeline, source)
    data = ClientData(*[_tensors(*chosen.get(name, empty), cfg.task, dtype, pipeline) for name in SPLITS])
    gone = sum(len(part.y) for part in found.values()) - sum(len(part.y) for part in kept.values())
    moments = Moments.of(chosen[TRAIN][0]) if cfg.standardise else None
    kind = "tokens" if cfg.tokens else "bytes" if white(chosen[TRAIN][0]) != 1 else "numbers"
    return Local(data, columns, gone, moments, kind)


def _check_columns(columns: tuple[str, ...], pipeline: Pipeline, source: str) -> None:
    if columns and pipeline.columns and columns != pipeline.columns:
        odd = ", ".join(sorted(set(columns) ^ set(pipeline.columns))[:10])
        raise DataError(f"{source}: has other columns than the run's other devices ({odd} in one only)")


def _kept(part: Part, where: str, cfg: DataConfig) -> Part:
    """The rows that have all values, where data.missing=drop."""
    if cfg.missing == "refuse":
        return part._replace(x=native(part.x))
    x, y = usable(part.x, part.y, where, cfg.missing, part.columns)
    return part._replace(x=x, y=y)


# ---- where it comes from ------------------------------------------------------------------------


def is_entry_point(source: str) -> bool:
    module, colon, name = source.partition(":")
    return bool(colon) and all(p.isidentifier() for p in (*module.split("."), *name.split(".")))


def _call(source: str, target: str | None) -> Splits:
    module, _, name = source.partition(":")
    try:
        function: Callable[[], Any] = getattr(importlib.import_module(module), name)
        found = function()
    except Exception as error:  # whatever the owner's code raises
        raise DataError(
            f"{source}: {type(error).__name__}: {error}; it must be a function without arguments"
        ) from error
    pairs = found if isinstance(found, Mapping) else {WHOLE: found}
    return {str(k): by_name(part_of(pair, target, f"{source} ({k})")) for k, pair in pairs.items()}


def _files(path: Path, target: str | None, cfg: DataConfig) -> Splits:
    found = find(path) if path.is_dir() else Found([], [])
    if not found.images:
        return read_one(path, target, cfg.client, cfg.task == "regression")
    look = Look.of(cfg.image_size, colour_for(cfg.input_shape))
    clients = read_images(path, found.images, look)
    if set(clients) != {""}:
        raise DataError(f"{path}: holds folders of clients ({', '.join(sorted(clients))}); name one client's")
    for note in left_out(path, found.others):
        log.warning("%s: %s", path, note)
    return dict(clients[""])


def state_of(source: str, run: str) -> tuple[object, ...]:
    """What changes when the files of a source do; a function is asked once a run."""
    if is_entry_point(source):
        return (run,)
    path = Path(source).expanduser()
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    stats = [(str(p), p.stat()) for p in files if p.exists()]
    return tuple((name, s.st_ino, s.st_size, s.st_mtime_ns) for name, s in stats)


# ---- whether it fits ----------------------------------------------------------------------------


class Expected(NamedTuple):
    """What a model takes and says."""

    input_shape: tuple[int, ...]
    task: str
    num_classes: int
    class_names: tuple[str, ...] = ()  # (): 0, 1, ...
    kind: str = ""  # of its inputs, see Pipeline; "": any
    image_size: tuple[int, ...] = ()  # that images are brought to


def checked(x: np.ndarray, y: np.ndarray, cfg: DataConfig | Expected, where: str) -> Pair:
    """(x [n, *input_shape], y [n] as the task takes it) if they fit.

    Raises:
        DataError: another shape, other classes, no numbers, or NaN.
    """
    if x.dtype.kind in NUMBERS and (y.ndim != 1 or x.ndim < 1 or len(x) != len(y)):
        raise DataError(f"{where}: x is {x.shape} and y {y.shape}; expected [n, ...] and [n], one y a row")
    return shaped(x, cfg, where), targets(y, cfg, where)


def shaped(x: np.ndarray, cfg: DataConfig | Expected, where: str) -> np.ndarray:
    """x [n, *input_shape] if it fits.

    Raises:
        DataError: another shape, no numbers, or NaN.
    """
    if x.dtype.kind not in NUMBERS:
        raise DataError(f"{where}: x is of type {x.dtype}; give numbers")
    found = fitted(channels_first(x), cfg.input_shape) if x.ndim else None
    if found is None:
        raise DataError(
            f"{where}: a sample has shape {x.shape[1:]}, "
            f"the run expects data.input_shape={list(cfg.input_shape)}"
        )
    _check_finite(x, "", where)
    return found


def _check_finite(values: np.ndarray, what: str, where: str) -> None:
    """The first row, counted from 1, that holds no finite number, is named."""
    rows = np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(1))
    if len(rows):
        raise DataError(
            f"{where}: {len(rows)} of {len(values)} rows lack a value or hold NaN or infinite numbers "
            f"(the first is row {rows[0] + 1}{what}); fill or drop these rows"
        )


def targets(y: np.ndarray, cfg: DataConfig | Expected, where: str) -> np.ndarray:
    """Numbers of classes, or values of a regression.

    Raises:
        DataError: other classes, or NaN.
    """
    if cfg.task == "regression":
        if y.dtype.kind not in NUMBERS:
            raise DataError(f"{where}: target {str(y[0])!r} is text; a regression takes numbers")
        _check_finite(y, ", its target", where)
        return y
    if y.dtype.kind == "f":
        _check_finite(y, ", its target", where)
    if TASKS[cfg.task].targets == "labels":
        if y.shape[1:] != (cfg.num_classes,) or not np.isin(y, (0, 1)).all():
            text = f"expected [n, {cfg.num_classes}] of 0 and 1, a column a label"
            raise DataError(f"{where}: y is {y.shape} of {y.dtype}; {text}")
        return y
    top = 2 if TASKS[cfg.task].one_output else cfg.num_classes
    plainly = tuple(map(str, range(top)))
    numbers = {name: i for i, name in enumerate(cfg.class_names or plainly)}
    words = np.array([class_name(value) for value in y.tolist()]) if y.dtype.kind == "O" else y
    found, which = np.unique(words, return_inverse=True)
    names = [class_name(value) for value in found.tolist()]
    names = names if cfg.class_names else [plain(name) for name in names]
    wrong = next((name for name in names if name not in numbers), None)
    if wrong is not None:
        known = f"0..{top - 1}" if cfg.class_names in ((), plainly) else ", ".join(cfg.class_names)
        remedy = (
            "number the classes from 0, or name them in their order with data.class_names=[...]"
            if isinstance(cfg, DataConfig)
            else "give the answers that are known by these names"
        )
        raise DataError(f"{where}: label {wrong} is none of {known}; {remedy}")
    return np.array([numbers[name] for name in names], dtype=np.int64)[which.reshape(-1)]


def _tensors(x: np.ndarray, y: np.ndarray, task: str, dtype: torch.dtype, pipeline: Pipeline) -> Data:
    whole = dtype if task == "regression" else torch.int64
    targets = torch.from_numpy(np.array(y)).to(whole)
    return Data(pipeline.inputs(x, dtype), targets, torch.ones(len(y), dtype=dtype))


def facts(found: Local, cfg: DataConfig) -> dict[str, Any]:
    """What the server is told when it calls the roll; sums of features only for data.standardise."""
    data, labels = found.data, []
    if cfg.task != "regression":
        width = cfg.num_classes if cfg.task == "classification" else 2
        labels = torch.bincount(data.train.y, minlength=width).tolist()
    return {
        "num_train": len(data.train),
        "num_valid": len(data.valid),
        "num_test": len(data.test),
        "label_counts": labels,
        "left_out": found.left_out,
        "columns": json.dumps(found.columns),
        "kind": found.kind,
        "sums": list(found.moments.sums if found.moments else ()),
        "squares": list(found.moments.squares if found.moments else ()),
    }
