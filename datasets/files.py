"""data=files: your own samples in files, a client a file or folder, or one file that names the clients.

DIR/anna.csv, DIR/ben.npz, ...        a client a file
DIR/anna/train.csv, DIR/anna/test.csv a client a folder with its splits
FILE.csv, or DIR/train.csv, test.csv  all clients together; the column data.client says whose each row is
DIR/anna/cat/1.png                    images: client, class; a folder train or test may stand above or below
DIR/cat/1.png                         images without clients, for a data.partition
"""

import re
from dataclasses import replace
from itertools import chain
from pathlib import Path

from numpy.random import Generator

from fedpers.core.arrays import SPLIT_NAMES, split_of
from fedpers.core.errors import DataError
from fedpers.datasets.config import DataConfig
from fedpers.datasets.image_folders import Found, find, left_out, read_images, shown
from fedpers.datasets.local_files import KINDS, read, read_one, unread
from fedpers.datasets.own import Owned, to_raw
from fedpers.datasets.pictures import Look
from fedpers.datasets.raw import Raw

OF_SPLIT = re.compile(rf"(.+)[-_. ]({'|'.join(chain(*SPLIT_NAMES.values()))})", re.IGNORECASE)


def load(cfg: DataConfig, rng: Generator) -> Raw:
    """The set in data.path.

    Raises:
        DataError: names the file, what is wrong with it and the remedy.
    """
    path = Path(cfg.path or "").expanduser()
    if not path.exists():
        raise DataError(f"data.path={path}: there is no such file or folder; name yours with data.path=...")
    tables = _tables(path)
    found = find(path) if path.is_dir() and not tables else Found([], [])
    if not tables and not found.images:
        raise DataError(
            f"data.path={path}: has no {', '.join(KINDS)} file and no images in folders; "
            "docs/own_data.md shows what is read"
        )
    clients = [_owned(name, p, cfg) for name, p in tables] or _of_images(path, found.images, cfg)
    _check_names([client.name for client in clients], path)
    raw = to_raw(clients, cfg)
    if raw.owner is None and cfg.partition == "natural":
        raise DataError(
            f"data.path={path}: has no column '{cfg.client}' and no client folders, so it names no clients; "
            "say which column does with data.client=..., or deal the samples: data.partition=iid "
            "data.num_clients=10"
        )
    if raw.owner is None and cfg.client != DataConfig.client:
        raise DataError(f"data.client={cfg.client}: {path} has no such column; choose one, or leave it out")
    others = _beside(path, [p for _, p in tables]) if tables else found.others
    arrays = _arrays_left([p for _, p in tables], cfg)
    return replace(raw, notes=(*left_out(path, others), *arrays, *raw.notes))


def _arrays_left(tables: list[Path], cfg: DataConfig) -> tuple[str, ...]:
    """A note of arrays in .npz files that are neither samples nor clients."""
    left = {name: p for p in reversed(tables) for name in unread(p) if p.is_file() and name != cfg.client}
    return tuple(f"{p}: the array '{name}' is not read" for name, p in list(left.items())[:10])


def _beside(path: Path, tables: list[Path]) -> list[Path]:
    """What lies beside the tables that are read, or in a client's folder beside its splits."""
    others = [] if path in tables else [p for p in shown(path) if p not in tables]
    return others + [p for of in tables if of.is_dir() for p in shown(of) if not _is_split_of(p, of)]


def _owned(name: str, path: Path, cfg: DataConfig) -> Owned:
    reader = read_one if name else read
    return Owned(name, str(path), reader(path, cfg.target, cfg.client, cfg.task == "regression"))


def _of_images(path: Path, images: list[Path], cfg: DataConfig) -> list[Owned]:
    found = read_images(path, images, Look.of(cfg.image_size))
    return [Owned(name, str(path / name), parts) for name, parts in found.items()]


def _check_names(names: list[str], path: Path) -> None:
    """anna_train and anna_test are splits of one client, and not two clients.

    Raises:
        DataError: two names differ in that alone.
    """
    seen: dict[str, str] = {}
    for name, match in [(n, OF_SPLIT.fullmatch(n)) for n in names]:
        if match and seen.setdefault(match[1], name) != name:
            raise DataError(
                f"data.path={path}: {seen[match[1]]} and {name} are not two clients; a client's splits are "
                f"{match[1]}/train and {match[1]}/test, with .csv, .tsv, .npz, .parquet or folders of images"
            )


def _tables(path: Path) -> list[tuple[str, Path]]:
    """(client, file or folder of splits); the client is "" where the rows must name it."""
    if path.is_file() or _is_cut(path):
        return [("", path)]
    found = [p for p in shown(path) if _is_table(p) or _is_cut(p)]
    names = [p.stem if p.is_file() else p.name for p in found]
    for i, name in enumerate(names):
        if name in names[:i]:
            other = found[names.index(name)]
            raise DataError(f"{found[i]} and {other.name} are both of client '{name}'; keep one")
    return list(zip(names, found, strict=True))


def _is_table(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() in KINDS


def _is_cut(path: Path) -> bool:
    """Whether a folder holds files called train, valid or test."""
    return path.is_dir() and any(_is_split_of(p, path) for p in shown(path))


def _is_split_of(file: Path, folder: Path) -> bool:
    return file.parent == folder and split_of(file.stem) is not None and _is_table(file)
