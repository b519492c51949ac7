"""Clients' own samples, read from wherever they are, to one set with natural clients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedpers.core.arrays import (
    TEST,
    TRAIN,
    VALID,
    WHOLE,
    Part,
    alike,
    in_order,
    numbered,
    renamed,
    usable,
    whole_numbers,
)
from fedpers.core.errors import DataError
from fedpers.core.pixels import one_scale
from fedpers.datasets.config import DataConfig
from fedpers.datasets.raw import Raw


@dataclass(frozen=True)
class Owned:
    """What one client has, by split; "all" is to be cut."""

    name: str  # of the client; "": the samples have no owner yet
    where: str  # in messages
    parts: Mapping[str, Part]


def owners_of(owned: Owned) -> list[Owned]:
    """One client for each different owner that the rows name; itself if they name none."""
    if all(part.owner is None for part in owned.parts.values()):
        return [owned]
    names = np.unique(np.concatenate([_names(part, owned.where) for part in owned.parts.values()]))
    return [
        Owned(str(name), f"{owned.where}, client '{name}'", {s: p for s, p in _of(owned, name) if len(p.y)})
        for name in names
    ]


def _names(part: Part, where: str) -> np.ndarray:
    if part.owner is None or part.owner.shape != (len(part.y),):
        raise DataError(
            f"{where}: names the client of some rows only; name it in each split and for each row"
        )
    owner = part.owner
    if owner.dtype.kind == "f" and np.isnan(owner).any():
        raise DataError(f"{where}: {int(np.isnan(owner).sum())} rows name no client; fill that column")
    if owner.dtype.kind == "f" and (owner == np.floor(owner)).all():
        owner = owner.astype(np.int64)
    return np.asarray(owner.astype(str))


def _of(owned: Owned, name: str) -> list[tuple[str, Part]]:
    mine = {s: _names(p, owned.where) == name for s, p in owned.parts.items()}
    return [(s, Part(p.x[mine[s]], p.y[mine[s]], p.columns)) for s, p in owned.parts.items()]


def to_raw(clients: Sequence[Owned], cfg: DataConfig) -> Raw:
    """All clients' samples as one set: classes numbered, columns in one order, given splits kept.

    Raises:
        DataError: the samples cannot be used, or clients do not fit each other.
    """
    clients = [c for found in clients for c in owners_of(found)]
    _check_splits(clients)
    rows = [(k, c, s, p) for k, c in enumerate(clients) for s, p in c.parts.items()]
    parts, bare = in_order([(f"{c.where}{_split(s)}", p) for _, c, s, p in rows])
    pairs = [usable(p.x, p.y, w, cfg.missing, p.columns) for w, p in parts]
    columns = next((p.columns for _, p in parts if p.columns), ())
    alike((c.where, x.shape[1:]) for (_, c, _, _), (x, _) in zip(rows, pairs, strict=True))
    source = f"data.path={cfg.path}" if cfg.path else f"data.name={cfg.name}"
    targets, names = numbered([y for _, y in pairs], cfg.task, source)
    outputs = alike((c.where, y.shape[1:]) for (_, c, _, _), y in zip(rows, targets, strict=True))
    tokens = max(whole_numbers(x, rows[i][1].where) for i, (x, _) in enumerate(pairs)) if cfg.tokens else 0
    samples = [x for x, _ in pairs] if cfg.tokens else one_scale([x for x, _ in pairs])
    test = [s == TEST for _, _, s, _ in rows]
    owner = [np.full(len(y), k) for (k, *_), y in zip(rows, targets, strict=True)]
    valid = [np.full(len(y), s == VALID) for (_, _, s, _), y in zip(rows, targets, strict=True)]
    xs, ys, owners, held = (_parts(a, test) for a in (samples, targets, owner, valid))
    known = all(c.name for c in clients)
    return Raw(
        name=cfg.name,
        x=xs[0],
        y=ys[0],
        test_x=xs[1],
        test_y=ys[1],
        num_classes=len(names) or int(np.prod(outputs, dtype=int)),
        task=cfg.task,
        owner=owners[0] if known else None,
        test_owner=owners[1] if known else None,
        notes=(*bare, *renamed(names)),
        valid=np.concatenate(held) if any(s == VALID for _, _, s, _ in rows) else None,
        names=tuple(c.name for c in clients) if known else (),
        own=known,
        tokens=tokens,
        columns=columns,
        target=cfg.target if columns else None,
        classes=tuple(names),
    )


def _split(name: str) -> str:
    return "" if name == WHOLE else f" ({name})"


def _parts(arrays: list[np.ndarray], test: list[bool]) -> tuple[np.ndarray, np.ndarray]:
    """(training part, test part) of arrays that belong to one or the other."""
    train = np.concatenate([a for a, t in zip(arrays, test, strict=True) if not t])
    rest = [a for a, t in zip(arrays, test, strict=True) if t]
    return train, np.concatenate(rest) if rest else train[:0]


def _check_splits(clients: Sequence[Owned]) -> None:
    """All clients come cut into train and test, or none does."""
    for client in clients:
        has = set(client.parts)
        if has != {WHOLE} and not {TRAIN, TEST} <= has:
            raise DataError(
                f"{client.where}: has {', '.join(sorted(has)) or 'nothing'}; "
                "give train and test, or x and y to be cut"
            )
        if (has == {WHOLE}) != (set(clients[0].parts) == {WHOLE}):
            raise DataError(
                f"{client.where} and {clients[0].where}: one comes cut into train and test and one does not; "
                "cut both or none"
            )
        if (VALID in has) != (VALID in clients[0].parts):
            raise DataError(
                f"{client.where} and {clients[0].where}: one has validation samples and one does not; "
                "give all clients some or none"
            )
