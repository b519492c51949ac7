"""Samples that all know and no client has: some of the training samples, held back (data.public)."""

from dataclasses import replace

import numpy as np

from fedpers.core.errors import DataError
from fedpers.datasets.config import DataConfig
from fedpers.datasets.cuts import PUBLIC, Samples, Splits, stream
from fedpers.datasets.keys import USED_BY
from fedpers.datasets.raw import Raw

MANY, SHARE = 200, 5  # data.public=auto: so many, and at most one of five


def hold_back(cfg: DataConfig, raw: Raw, splits: Splits, seed: int) -> tuple[Splits, np.ndarray, np.ndarray]:
    """Take data.public training samples from the clients, drawn from those of all of them together.

    They are drawn after the cuts: validation and test samples stay what they are without the key, and clients
    keep what is left of their training samples. A client keeps data.min_size of these (of a partition that
    has no such key 1). Copies of one sample go together, and one that somebody tests with is not taken.

    Returns:
        The splits, and the held-back samples' numbers [n] and sources [n]; data.public=auto is MANY of them,
        and of few training samples one of SHARE.

    Raises:
        DataError: there are not so many.
    """
    if not cfg.public:
        return splits, np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    train = Samples.of(splits.train, splits.train_source)
    same = np.arange(len(raw.labels)) if raw.same is None else raw.same
    ids = same[train.index]
    keeps = cfg.min_size if cfg.partition in USED_BY["min_size"] else 1
    kept = [same[i] for i in (*splits.valid, *splits.test)] + [ids[train.place < keeps]]
    free = np.flatnonzero(~np.isin(ids, np.concatenate(kept)))
    first = free[np.unique(ids[free], return_index=True)[1]]  # of copies one
    wanted = min(MANY, len(ids) // SHARE) if cfg.public == "auto" else cfg.public
    if len(first) < max(wanted, 1):
        raise DataError(
            f"data.public={cfg.public}: of the clients' training samples {len(first)} can be held back, each "
            f"client keeping {keeps}; hold back fewer, or use fewer clients"
        )
    drawn = np.sort(stream(seed, PUBLIC).permutation(first)[:wanted])
    left = train.where(~np.isin(ids, ids[drawn]))
    clients = {"train": left.apart(left.index), "train_source": left.apart(left.source)}
    return replace(splits, **clients), train.index[drawn], train.source[drawn]


def note(count: int) -> tuple[str, ...]:
    """What a reader of the results must know of so many public samples."""
    return (f"{count} training samples are public: no client has them",) if count else ()
