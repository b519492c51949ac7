"""Clients' own samples, read from wherever they are, to one set with natural clients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedpers.core.arrays import TEST, TRAIN, VALID, WHOLE, Pair, Part, alike, lacking, usable, whole_numbers
from fedpers.core.errors import DataError
from fedpers.core.pixels import one_scale
from fedpers.core.tables import in_order, left_out
from fedpers.core.targets import class_name, numbered, outputs_of, renamed
from fedpers.datasets.config import DataConfig
from fedpers.datasets.raw import Raw
from fedpers.datasets.split import by_owner


@dataclass(frozen=True)
class Owned:
    """What one client has, by split; "all" is to be cut."""

    name: str  # of the client; "": the samples have no owner yet
    where: str  # in messages
    parts: Mapping[str, Part]


def owners_of(owned: Owned, missing: str) -> list[Owned]:
    """One client for each owner that the rows name, in the order of names; itself if they name none."""
    if all(part.owner is None for part in owned.parts.values()):
        return [owned]
    names = {split: owner_names(part, owned.where) for split, part in owned.parts.items()}
    nobody = {split: found == "" for split, found in names.items()}
    count = sum(int(mask.sum()) for mask in nobody.values())
    if count and missing == "refuse":
        raise DataError(
            f"{owned.where}: {count} rows name no client; fill that column, or leave such rows out with "
            "data.missing=drop"
        )
    different = np.unique(np.concatenate([found[found != ""] for found in names.values()]))
    rows = {split: _rows_of(found, different) for split, found in names.items()}
    return [
        Owned(
            str(name),
            f"{owned.where}, client '{name}'",
            {s: _mine(p, rows[s][k]) for s, p in owned.parts.items() if len(rows[s][k])},
        )
        for k, name in enumerate(different)
    ]


def _rows_of(names: np.ndarray, different: np.ndarray) -> list[np.ndarray]:
    """The rows of each of the `different` names."""
    named = np.flatnonzero(names != "")
    return by_owner(named, np.searchsorted(different, names[named]), len(different))


def _mine(part: Part, rows: np.ndarray) -> Part:
    return part.rows(rows)._replace(owner=None)


def owner_names(part: Part, where: str) -> np.ndarray:
    """[n] the client of each row as text, as it is written: 007 and 7 are two; "" where none is named.

    Raises:
        DataError: the rows of this part name no clients, or by numbers that are not whole.
    """
    owner = part.owner
    if owner is None or owner.shape != (len(part.y),):
        raise DataError(
            f"{where}: names the client of some rows only; name it in each split and for each row"
        )
    if owner.dtype.kind == "f" and (np.abs(owner[~np.isnan(owner)]) >= 2**53).any():
        raise DataError(
            f"{where}: names clients by floating-point numbers above 2^53, of which several are one; "
            "write that column as text or whole numbers"
        )
    if owner.dtype.kind in "iuU":
        return np.char.strip(owner.astype(str))
    return np.array(["" if lacking(v) else class_name(v).strip() for v in owner.tolist()], dtype=str)


def to_raw(clients: Sequence[Owned], cfg: DataConfig) -> Raw:
    """All clients' samples as one set: classes numbered, columns in one order, given splits kept.

    Raises:
        DataError: the samples cannot be used, or clients do not fit each other.
    """
    nobody = _without_client(clients)
    clients = [c for found in clients for c in owners_of(found, cfg.missing)]
    if not clients:
        raise DataError(f"data.path={cfg.path}: no row names a client; fill the column '{cfg.client}'")
    _check_splits(clients)
    rows = [(k, c, s, p) for k, c in enumerate(clients) for s, p in c.parts.items()]
    parts, bare = in_order([(f"{c.where}{_split(s)}", p) for _, c, s, p in rows])
    pairs = [usable(p.x, p.y, w, cfg.missing, p.columns) for w, p in parts]
    dropped = _left_out([clients[k] for k, *_ in rows], parts, pairs) if cfg.missing == "drop" else ()
    columns = next((p.columns for _, p in parts if p.columns), ())
    alike((c.where, x.shape[1:]) for (_, c, _, _), (x, _) in zip(rows, pairs, strict=True))
    source = f"data.path={cfg.path}" if cfg.path else f"data.name={cfg.name}"
    targets, names = numbered([y for _, y in pairs], cfg.task, source)
    alike((c.where, y.shape[1:]) for (_, c, _, _), y in zip(rows, targets, strict=True))
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
        num_classes=2 if cfg.task == "binary" else outputs_of(targets, names, cfg.task, tokens),
        task=cfg.task,
        owner=owners[0] if known else None,
        test_owner=owners[1] if known else None,
        notes=(*bare, *nobody, *dropped, *renamed(names)),
        valid=np.concatenate(held) if any(s == VALID for _, _, s, _ in rows) else None,
        names=tuple(c.name for c in clients) if known else (),
        own=known,
        tokens=tokens,
        columns=columns,
        target=cfg.target if columns else None,
        classes=tuple(names),
    )


def _without_client(clients: Sequence[Owned]) -> tuple[str, ...]:
    """A note of rows that name no client, where some rows name one."""
    named = [(c.where, p) for c in clients for p in c.parts.values() if p.owner is not None]
    count = sum(int((owner_names(part, where) == "").sum()) for where, part in named)
    return (f"{count} rows name no client and are left out (data.missing=drop)",) if count else ()


def _left_out(
    owners: Sequence[Owned], parts: Sequence[tuple[str, Part]], pairs: Sequence[Pair]
) -> tuple[str, ...]:
    """A note of rows that lack a value, by client."""
    counts: dict[str, tuple[int, int]] = {}
    for owner, (_, part), (_, y) in zip(owners, parts, pairs, strict=True):
        name = owner.name or owner.where
        gone, rows = counts.get(name, (0, 0))
        counts[name] = gone + len(part.y) - len(y), rows + len(part.y)
    return left_out(counts) or ("no row lacks a value, so none is left out (data.missing=drop)",)


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
                "give train and test, or x and y to be split"
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
