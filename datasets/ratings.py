"""A table of who chose what, a row a choice: a person is a client, and is to be told what comes next.

As is usual for choices without marks (He et al., "Neural collaborative filtering", 2017): of each person the
last choice is for testing, ranked among things that were not chosen, the one before for validation, and each
earlier one is trained on beside some that were not chosen.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.random import Generator

from fedpers.core.arrays import lacking
from fedpers.core.errors import DataError
from fedpers.core.targets import class_name, in_order_of_value
from fedpers.datasets.config import DataConfig
from fedpers.datasets.csv_files import Columns
from fedpers.datasets.local_files import read_columns
from fedpers.datasets.raw import Raw
from fedpers.datasets.split import by_owner

LEAST = 3  # choices: one each for testing, validation and training
MOVIELENS = ("user", "item", "rating", "timestamp")
MOVIELENS_MARKS = {".data": "\t", ".dat": "::"}  # between them, by what the file's name ends with
Row = tuple[int, int]  # a thing's number, 1 if it was chosen


def load(cfg: DataConfig, rng: Generator) -> Raw:
    """Things by number x [n, 1] and whether they were chosen y [n]; reads .csv, and MovieLens' u.data.

    Raises:
        DataError: names the file, what is wrong with it and the remedy.
    """
    path = Path(cfg.path or "").expanduser()
    table = _read(path, cfg)
    people, owner = _numbered(table[cfg.client])
    things, item = _numbered(table[cfg.target])
    order = np.argsort(table[cfg.time], kind="stable") if cfg.time else np.arange(len(item))
    chosen = [item[rows] for rows in by_owner(order, owner[order], len(people))]
    chosen = [own[np.sort(np.unique(own, return_index=True)[1])] for own in chosen]  # the first time counts
    kept = [k for k, own in enumerate(chosen) if len(own) >= LEAST]
    if not kept:
        raise DataError(f"data.path={path}: no person has {LEAST} different choices")
    splits = [list(_splits(chosen[k], len(things), cfg, rng, f"{path}: '{people[k]}'")) for k in kept]
    first = np.array([(*row, k, v) for k, three in enumerate(splits) for v in (0, 1) for row in three[v]])
    last = np.array([(*row, k, 0) for k, three in enumerate(splits) for row in three[2]])
    gone = len(people) - len(kept)
    return Raw(
        name="ratings",
        x=first[:, :1],
        y=first[:, 1],
        test_x=last[:, :1],
        test_y=last[:, 1],
        num_classes=1,
        task="ranking",
        owner=first[:, 2],
        test_owner=last[:, 2],
        notes=(f"{gone} of {len(people)} people have under {LEAST} choices and are left out",)
        if gone
        else (),
        valid=np.concatenate([first[:, 3], last[:, 3]]) > 0,
        names=tuple(str(people[k]) for k in kept),
        tokens=len(things),
        columns=(cfg.target or "item",),
        words=tuple(things),
    )


def _numbered(names: np.ndarray) -> tuple[list[str], np.ndarray]:
    """(different names in the order of their values, the number of each)."""
    found, which = np.unique(names, return_inverse=True)
    ordered = in_order_of_value(set(found.tolist()))
    place = {name: i for i, name in enumerate(ordered)}
    return ordered, np.array([place[name] for name in found.tolist()])[which]


def _read(path: Path, cfg: DataConfig) -> dict[str, np.ndarray]:
    """The columns that count, by name; people and things are text, as they are written."""
    if not path.is_file():
        raise DataError(f"data.path={path}: there is no such file; name a .csv with a row a choice")
    words = cfg.client, cfg.target
    mark = MOVIELENS_MARKS.get(path.suffix)
    table = _movielens(path, mark) if mark else read_columns(path, words)
    wanted = {"data.client": cfg.client, "data.target": cfg.target} | (
        {"data.time": cfg.time} if cfg.time else {}
    )
    for key, name in wanted.items():
        if name not in table:
            raise DataError(f"data.path={path}: has no column {key}={name}; it has {', '.join(table)}")
        if any(map(lacking, table[name].tolist())):
            raise DataError(f"data.path={path}: rows lack a value in '{name}'; fill or drop them")
    text = {name: np.array([class_name(v) for v in table[name].tolist()], dtype=str) for name in words}
    return {name: table[name] for name in wanted.values()} | text


def _movielens(path: Path, mark: str) -> Columns:
    """u.data or ratings.dat, which have no names of columns."""
    rows = [line.split(mark) for line in path.read_text(encoding="latin-1").splitlines() if line]
    if any(len(row) != len(MOVIELENS) for row in rows):
        raise DataError(f"data.path={path}: is not as MovieLens has it: {', '.join(MOVIELENS)} in each row")
    user, item, rating, when = (np.array(column) for column in zip(*rows, strict=True))
    return dict(zip(MOVIELENS, (user, item, rating.astype(float), when.astype(float)), strict=True))


def _splits(own: np.ndarray, count: int, cfg: DataConfig, rng: Generator, where: str) -> Iterator[list[Row]]:
    """Rows to train on, for validation and for testing, of one person's choices in their order."""
    others = np.setdiff1d(np.arange(count), own)
    if not len(others):
        raise DataError(
            f"data.path={where} chose all {count} items, so that none is left to rank the choice among"
        )
    *earlier, before, last = own.tolist()
    beside = rng.choice(others, (len(earlier), cfg.negatives)).tolist()
    yield [
        row
        for item, more in zip(earlier, beside, strict=True)
        for row in ((item, 1), *((i, 0) for i in more))
    ]
    for item in (before, last):
        ranked = rng.choice(others, min(cfg.candidates, len(others)), replace=False)
        yield [(item, 1), *((i, 0) for i in ranked.tolist())]
