"""Each client's samples cut into training, validation and test."""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from fedpers.core.errors import DataError
from fedpers.datasets.config import DataConfig
from fedpers.datasets.raw import Raw
from fedpers.datasets.split import Indices, Partition

# One stream of random numbers for each purpose, so that a change in one leaves the others alone.
LIMIT, DEAL, CUT, HOLDOUT, LOAD = range(5)


def stream(seed: int, *key: int) -> Generator:
    """A generator of its own for (seed, purpose, ...), the same on every machine."""
    return np.random.Generator(np.random.PCG64([seed, *key]))


@dataclass(frozen=True)
class Splits:
    """Sample numbers of each client in each split, counted through the whole set."""

    train: Indices
    valid: Indices
    test: Indices
    train_source: Indices
    valid_source: Indices
    test_source: Indices


def cut_clients(cfg: DataConfig, raw: Raw, part: Partition, seed: int) -> Splits:
    """Cut the validation samples (and without a test part the test samples) in each client."""
    same = np.arange(len(raw.labels)) if raw.same is None else raw.same
    has_test = len(raw.test_y) > 0 and not (cfg.pool or cfg.train_only)
    out: list[list[np.ndarray]] = [[], [], [], [], [], []]
    for k, index in enumerate(part.train):
        rng = stream(seed, CUT, k)
        source = _source(part.train_source, index, k)
        order = rng.permutation(len(index))
        index, source = index[order], source[order]
        if has_test:
            order = rng.permutation(len(part.test[k]))
            test, test_source = part.test[k], _source(part.test_source, part.test[k], k)
            test, test_source = test[order], test_source[order]
        else:
            (test, test_source), (index, source) = _cut(index, source, same, cfg.test_fraction, rng, 1)
        index, source = index[: cfg.train_per_client], source[: cfg.train_per_client]
        if raw.valid is None:
            (valid, valid_source), (index, source) = _cut(index, source, same, cfg.valid_fraction, rng)
        else:
            mine = raw.valid[index]
            (valid, valid_source), (index, source) = (
                (index[mine], source[mine]),
                (index[~mine], source[~mine]),
            )
        if not len(index) or not len(test):
            raise DataError(
                f"client {k}{_name(raw, part, k)} is left with {len(index)} training and {len(test)} test "
                f"samples after the cuts; use fewer than {len(part)} clients, a larger "
                "data.min_size, or another data.test_fraction"
            )
        top = cfg.test_per_client
        for kept, piece in zip(
            out, (index, valid, test[:top], source, valid_source, test_source[:top]), strict=True
        ):
            kept.append(piece)
    return Splits(*out)


def _name(raw: Raw, part: Partition, k: int) -> str:
    """What client k is called, where the set names its clients."""
    return f" ('{raw.names[part.truth['owner'][k]]}')" if raw.names and "owner" in part.truth else ""


def _source(given: Indices | None, index: np.ndarray, k: int) -> np.ndarray:
    return np.zeros(len(index), dtype=np.int64) if given is None else given[k]


Pair = tuple[np.ndarray, np.ndarray]


def _cut(
    index: np.ndarray, source: np.ndarray, same: np.ndarray, fraction: float, rng: Generator, least: int = 0
) -> tuple[Pair, Pair]:
    """(chosen, rest): `fraction` of the different samples; copies of one stay on one side."""
    mine = same[index]
    ids = different(mine)
    count = int(fraction * len(ids) + 1e-9)  # 0.29 * 100 is 28.999...
    taken = np.zeros(len(ids), dtype=bool)
    taken[rng.permutation(len(ids))[: max(least, count)]] = True
    mask = taken[ids.searchsorted(mine)]
    return (index[mask], source[mask]), (index[~mask], source[~mask])


def different(values: np.ndarray) -> np.ndarray:
    """`np.unique` of a client's few values, in a third of its time."""
    values = np.sort(values)
    first = np.ones(len(values), dtype=bool)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return values[first]
