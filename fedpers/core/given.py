"""A federation of arrays or tables that a program of the caller holds in memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedpers.core.arrays import (
    SPLITS,
    TEST,
    TRAIN,
    VALID,
    WHOLE,
    Part,
    alike,
    as_array,
    cut,
    usable,
    whole_numbers,
)
from fedpers.core.errors import ConfigError, DataError, unknown
from fedpers.core.pipeline import Pipeline
from fedpers.core.pixels import one_scale, white
from fedpers.core.samples import ClientData, Data
from fedpers.core.tables import in_order, left_out, of_table
from fedpers.core.targets import numbered, outputs_of, renamed
from fedpers.core.tasks import FROM_ARRAYS, TASKS, WHOLE_NUMBERS


@dataclass(frozen=True)
class Reading:
    """How the arrays of all clients are read; see `Federation.from_arrays`."""

    task: str
    test_fraction: float
    valid_fraction: float
    target: str
    missing: str
    tokens: bool
    seed: int
    name: str
    dtype: torch.dtype


def fields_of(clients: Sequence[Any] | Mapping[str, Any], reading: Reading) -> dict[str, Any]:
    """The fields of a Federation of the entries, one a client.

    Raises:
        DataError: names the client, what is wrong with its arrays and the remedy.
        ConfigError: there is no such task, or arrays cannot say what it needs.
    """
    if reading.task not in FROM_ARRAYS:
        raise ConfigError(unknown("task", reading.task, FROM_ARRAYS))
    named = _named(clients)
    where = [f"client '{k}'" for k in named]
    gone: dict[str, tuple[int, int]] = {}
    splits = [
        _splits(c, w, i, reading, gone) for i, (c, w) in enumerate(zip(named.values(), where, strict=True))
    ]
    parts = [(w, part) for w, three in zip(where, splits, strict=True) for part in three]
    parts, notes = in_order(parts)
    xs = one_scale([part.x for _, part in parts]) if not reading.tokens else [part.x for _, part in parts]
    parts = [(w, part._replace(x=x)) for (w, part), x in zip(parts, xs, strict=True)]
    shape = alike((w, part.x.shape[1:]) for w, part in parts)
    alike((w, part.y.shape[1:]) for w, part in parts)
    with_rows = [part.y for _, part in parts if len(part.y)]
    targets, classes = numbered(with_rows, reading.task, reading.name)
    tokens = max(whole_numbers(p.x, w) for w, p in parts if len(p.x)) if reading.tokens else 0
    pipeline = _pipeline([part for _, part in parts], classes, reading)
    found = iter(targets)
    ys = [next(found) if len(part.y) else targets[0][:0] for _, part in parts]
    data = [_data(part.x, y, pipeline, reading) for (_, part), y in zip(parts, ys, strict=True)]
    held = [ClientData(*data[i : i + len(SPLITS)]) for i in range(0, len(data), len(SPLITS))]
    counts = [np.bincount(y, minlength=len(classes)) if classes else np.zeros(0, int) for y in ys]
    return {
        "name": reading.name,
        "num_clients": len(held),
        "input_shape": shape,
        "num_classes": outputs_of(targets, classes, reading.task, tokens),
        "task": reading.task,
        "client": InMemoryClients(held),
        "num_train": np.array([len(c.train) for c in held]),
        "num_test": np.array([len(c.test) for c in held]),
        "label_counts": np.stack(counts[:: len(SPLITS)]),
        "notes": (*notes, *left_out(gone), *renamed(classes)),
        "tokens": tokens,
        "pipeline": pipeline,
        "clients": tuple(str(name) for name in clients) if isinstance(clients, Mapping) else (),
    }


def _named(clients: Sequence[Any] | Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(clients, Mapping):
        return {str(k): c for k, c in enumerate(clients)}
    named = {str(name): c for name, c in clients.items()}
    if len(named) < len(clients):
        names = [str(name) for name in clients]
        twice = next(n for n in names if names.count(n) > 1)
        raise DataError(f"two clients are called '{twice}' (names are text); give each a name of its own")
    return named


def _pipeline(parts: list[Part], classes: list[str], reading: Reading) -> Pipeline:
    kind = "tokens" if reading.tokens else "bytes" if white(parts[0].x) != 1 else "numbers"
    columns = parts[0].columns
    return Pipeline(kind, columns, reading.target if columns else None, tuple(classes))


class InMemoryClients:
    """client(k) of data that is in memory; can be sent to another process."""

    def __init__(self, clients: Sequence[ClientData]) -> None:
        self.clients = clients

    def __call__(self, k: int) -> ClientData:
        return self.clients[k]


def _splits(entry: Any, where: str, i: int, reading: Reading, gone: dict[str, tuple[int, int]]) -> list[Part]:
    """Training, validation and test samples of client i, checked and, where not given so, cut.

    How many rows are left out, of how many, is noted in `gone`.
    """
    given = dict(entry) if isinstance(entry, Mapping) else {WHOLE: entry}
    if set(given) - set(SPLITS) - {WHOLE} or not ({TRAIN, TEST} <= set(given) or set(given) == {WHOLE}):
        raise DataError(
            f'{where}: has {", ".join(map(str, given)) or "nothing"}; give (x, y), or {{"train": (x, y), '
            '"test": (x, y)}'
        )
    read = {split: part_of(pair, reading.target, f"{where} ({split})") for split, pair in given.items()}
    parts = {split: _usable(part, f"{where} ({split})", reading) for split, part in read.items()}
    rows, kept = (sum(len(part.y) for part in of.values()) for of in (read, parts))
    gone[where] = rows - kept, rows
    if WHOLE in parts:
        whole, rng = parts[WHOLE], np.random.default_rng([reading.seed, i])
        cuts = cut(len(whole.y), reading.test_fraction, reading.valid_fraction, rng)
        parts = {split: whole.rows(chosen) for split, chosen in cuts.items()}
    if not len(parts[TRAIN].y):
        raise DataError(f"{where}: has 1 sample and none is left for training; give it at least two")
    parts.setdefault(VALID, parts[TRAIN].rows(slice(0)))
    return [parts[split] for split in SPLITS]


def _usable(part: Part, where: str, reading: Reading) -> Part:
    x, y = usable(part.x, part.y, where, reading.missing, part.columns)
    return part._replace(x=x, y=y)


def part_of(pair: Any, target: str | None, where: str) -> Part:
    """A pair (x, y), or a table in which `target` is the column of y.

    Raises:
        DataError: it is neither, or its arrays cannot be read.
    """
    if not isinstance(pair, tuple | list):
        table = _columns(pair, where)
        if table is None:
            raise DataError(f"{where}: is {type(pair).__name__}; give a pair (x, y)")
        return of_table(table, target, where)
    if len(pair) != 2:
        raise DataError(f"{where}: has {len(pair)} parts; give a pair (x, y)")
    return _pair(pair[0], pair[1], where)


def _pair(x: Any, y: Any, where: str) -> Part:
    """x's columns keep their names, if it is a table."""
    targets, table = as_array(y, f"{where}, y"), _columns(x, f"{where}, x")
    if table is None:
        return Part(as_array(x, f"{where}, x"), targets)
    _check_rows(x, y, where)
    nowhere = "\0"  # a column that no table has
    return of_table(table | {nowhere: targets}, nowhere, where)


def _check_rows(x: Any, y: Any, where: str) -> None:
    """Rows of pandas' tables have names; they are matched by position."""
    mine: Any = getattr(x, "index", None)
    theirs: Any = getattr(y, "index", None)
    if not (hasattr(mine, "equals") and hasattr(theirs, "equals")):
        return  # no tables of pandas
    if not mine.equals(theirs) and set(mine) == set(theirs):
        raise DataError(f"{where}: x and y have the same index in another order; give y.loc[x.index]")


def _columns(table: Any, where: str) -> dict[str, np.ndarray] | None:
    """The columns of a table (pandas, Hugging Face) or of NumPy's records; None of anything else."""
    records = getattr(getattr(table, "dtype", None), "names", None)
    names = records or getattr(table, "column_names", getattr(table, "columns", None))
    if names is None:
        return None
    return {str(name): as_array(list(table[name]), f"{where}, column '{name}'") for name in names}


def _data(x: np.ndarray, y: np.ndarray, pipeline: Pipeline, reading: Reading) -> Data:
    kind = torch.int64 if TASKS[reading.task].targets in WHOLE_NUMBERS else reading.dtype
    inputs = pipeline.inputs(x, reading.dtype)
    return Data(inputs, torch.from_numpy(np.array(y)).to(kind), torch.ones(len(y), dtype=reading.dtype))
