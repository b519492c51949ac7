"""data=huggingface: sets of the `datasets` library, from its hub or a folder."""

from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

from fedpers.core.arrays import SPLITS, TEST, TRAIN, VALID, WHOLE, Part
from fedpers.core.errors import DataError, unknown
from fedpers.core.hub import asked_once
from fedpers.datasets.config import DataConfig
from fedpers.datasets.local_files import Columns, from_columns
from fedpers.datasets.own import Owned, to_raw
from fedpers.datasets.raw import Raw

NAMES = {"validation": VALID, "val": VALID, "dev": VALID}  # what the hub calls a split: what we do
EXTRA = "pip install datasets flwr-datasets"


def load(cfg: DataConfig, rng: Generator) -> Raw:
    """The set data.name; its test split is kept, or its validation split where it has no other.

    Raises:
        DataError: the library or the set cannot be loaded, or its columns cannot be used.
    """
    where = f"data.name={cfg.name}"
    found = _splits(_loaded(cfg, where))
    if cfg.partitioner:
        dealt, notes = _dealt(found, cfg, where, rng)
        raw = to_raw(dealt, cfg)
        return replace(raw, notes=(*raw.notes, *notes))
    parts = {split: _part(table, cfg, where) for split, table in found.items()}
    raw = to_raw([Owned("", where, parts)], cfg)
    if raw.owner is None and cfg.partition == "natural":
        raise DataError(
            f"{where}: has no column '{cfg.client}' that names clients; say which does with data.client=..., "
            "or deal the samples: data.partition=iid data.num_clients=10"
        )
    return raw


def _loaded(cfg: DataConfig, where: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise DataError(f"data=huggingface needs the extra: {EXTRA} ({error})") from error
    folder = Path(cfg.name).expanduser()
    with asked_once() as reach:
        try:
            return (
                datasets.load_from_disk(folder)
                if folder.is_dir()
                else datasets.load_dataset(cfg.name, **cfg.options)
            )
        except Exception as error:  # whatever the hub, the network or a damaged folder brings
            text = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            raise DataError(
                f"{where}: cannot be loaded: {reach.hint(error) or text}; without a "
                "network give a folder that Dataset.save_to_disk wrote: data.name=FOLDER"
            ) from error


def _splits(found: Any) -> dict[str, Any]:
    """Our names of splits to tables."""
    if hasattr(found, "column_names") and not isinstance(found, dict):
        return {WHOLE: found}
    named = {NAMES.get(name, name): table for name, table in found.items()}
    kept = {name: named[name] for name in SPLITS if name in named}
    if set(kept) == {TRAIN, VALID}:
        kept = {TRAIN: kept[TRAIN], TEST: kept[VALID]}
    if len(kept) < 2:
        return {WHOLE: next(iter(kept.values() or named.values()))}
    return kept


def _columns(table: Any, cfg: DataConfig, where: str) -> Columns:
    """The columns in use; images and lists are turned into arrays when they are read."""
    names = list(table.column_names)
    wanted = [n for n in names if n in (*cfg.features, cfg.target, cfg.client)] if cfg.features else names
    lacking = [n for n in cfg.features if n not in names]
    if lacking:
        raise DataError(f"{where}: {unknown('data.features', lacking[0], names)}")
    return {name: _array(table[name][:]) for name in wanted}


def _array(values: Any) -> np.ndarray:
    plain = list(values)
    if plain and isinstance(plain[0], int | float | str | bool | None):
        return np.asarray(plain)
    held = np.empty(len(plain), dtype=object)
    held[:] = plain
    return held


def _part(table: Any, cfg: DataConfig, where: str) -> Part:
    return from_columns(_columns(table, cfg, where), cfg.target, cfg.client, where)


def _dealt(
    found: dict[str, Any], cfg: DataConfig, where: str, rng: Generator
) -> tuple[list[Owned], tuple[str, ...]]:
    """All samples of the set, dealt by a partitioner of flwr-datasets, and a note of those that it drops.

    Each client's are cut anew. It draws by data.seed or the run's, unless its arguments name one. Rows are
    shuffled by that seed, as FederatedDataset does, for one that takes none and deals them in their order.
    """
    try:
        from flwr_datasets import partitioner

        from datasets import concatenate_datasets
    except ImportError as error:
        raise DataError(f"data.partitioner={cfg.partitioner} needs the extra: {EXTRA} ({error})") from error
    known = [name for name in partitioner.__all__ if name != "Partitioner"]
    if cfg.partitioner not in known:
        raise DataError(unknown("data.partitioner", str(cfg.partitioner), known))
    table = concatenate_datasets(list(found.values()))
    table = table.add_column("fedpers_row", list(range(len(table))))
    try:
        owner = _owners(getattr(partitioner, str(cfg.partitioner)), table, cfg, rng)
    except Exception as error:  # whatever it says of its arguments or of the set
        text = (str(error).splitlines() or [""])[0]
        raise DataError(
            f"data.partitioner={cfg.partitioner}: {type(error).__name__}: {text}; "
            "its arguments are data.partitioner_options={name: value}"
        ) from error
    part = _part(table.remove_columns("fedpers_row"), cfg, where)._replace(owner=None)
    kept = owner >= 0
    whole = Part(part.x[kept], part.y[kept], part.columns, owner[kept])
    dropped = int((~kept).sum())
    note = f"data.partitioner={cfg.partitioner} gives {dropped} of {len(owner)} rows to no client"
    return [Owned("", where, {WHOLE: whole})], (note,) if dropped else ()


def _owners(make: Callable[..., Any], table: Any, cfg: DataConfig, rng: Generator) -> np.ndarray:
    """[n] the client of each row, -1 for none."""
    options, drawn = dict(cfg.partitioner_options), int(rng.integers(2**31))
    if "seed" not in signature(make).parameters:
        table = table.shuffle(seed=drawn)
    elif options.get("seed") is None:
        options["seed"] = drawn  # by none they would deal otherwise in each process
    rule = make(**options)
    rule.dataset = table
    owner = np.full(len(table), -1)
    for k in range(rule.num_partitions):
        owner[np.asarray(rule.load_partition(k)["fedpers_row"][:], dtype=int)] = k
    return owner
