"""Each client's samples cut into training, validation and test, those of all clients at once."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.random import Generator

from fedpers.core.arrays import SPLITS, TEST, TRAIN, VALID, WHOLE, count, cut
from fedpers.core.errors import DataError
from fedpers.core.rng import Stream
from fedpers.core.seeds import shuffled_each
from fedpers.datasets.config import DataConfig
from fedpers.datasets.keys import PERHAPS, USED_BY
from fedpers.datasets.raw import Raw
from fedpers.datasets.split import Indices, Partition, runs

# One stream of random numbers for each purpose, so that a change in one leaves the others alone.
LIMIT, DEAL, CUT, HOLDOUT, LOAD, PUBLIC = range(6)
ROOM = 2**22  # numbers that are drawn in one call, with padding


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


@dataclass(frozen=True)
class Samples:
    """Samples of N clients, one client's after the other's."""

    index: np.ndarray  # [n] sample numbers
    source: np.ndarray  # [n]
    sizes: np.ndarray  # [N] samples of each client

    @classmethod
    def of(cls, index: Indices, source: Indices | None) -> "Samples":
        """Those of a partition; without sources all are of source 0."""
        flat, sizes = np.concatenate(index), np.array([len(i) for i in index], dtype=np.int64)
        return cls(flat, np.zeros_like(flat) if source is None else np.concatenate(source), sizes)

    @cached_property
    def starts(self) -> np.ndarray:
        """[N] where each client's begin."""
        return np.cumsum(self.sizes) - self.sizes

    @cached_property
    def client(self) -> np.ndarray:
        """[n] whose each sample is."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @cached_property
    def place(self) -> np.ndarray:
        """[n] its place among those of its client."""
        return np.arange(len(self.index)) - self.starts[self.client]

    def shuffled(self, streams: Sequence[Stream]) -> "Samples":
        """Each client's in an order that its stream draws."""
        order = _orders(streams, self.sizes) + self.starts[self.client]
        return Samples(self.index[order], self.source[order], self.sizes)

    def where(self, mask: np.ndarray) -> "Samples":
        """Some of them."""
        sizes = np.bincount(self.client[mask], minlength=len(self.sizes))
        return Samples(self.index[mask], self.source[mask], sizes)

    def first(self, most: int | None) -> "Samples":
        """At most so many of each client."""
        return self if most is None else self.where(self.place < most)

    def apart(self, flat: np.ndarray) -> Indices:
        """Each client's part of `flat` [n]."""
        return runs(flat, self.sizes)


def cut_clients(cfg: DataConfig, raw: Raw, part: Partition, seed: int) -> Splits:
    """Cut the validation samples (and without a test part the test samples) in each client."""
    _check_test_part(cfg, raw)
    if _as_on_devices(cfg, raw):
        return _cut_own(cfg, raw, part, seed)
    same = np.arange(len(raw.labels)) if raw.same is None else raw.same
    has_test = _has_test(cfg, raw)
    streams = [_client_stream(seed, k) for k in range(len(part))]
    train = Samples.of(part.train, part.train_source).shuffled(streams)
    if has_test:
        test = Samples.of(part.test, part.test_source).shuffled(streams)
    else:
        test, train = _cut(train, same, cfg.test_fraction, streams, 1)
    train = train.first(cfg.train_per_client)
    if raw.valid is None:
        valid, train = _cut(train, same, cfg.valid_fraction, streams)
    else:
        mine = raw.valid[train.index]
        valid, train = train.where(mine), train.where(~mine)
    _check_left(cfg, raw, part, train.sizes.tolist(), test.sizes.tolist())
    three = train, valid, test.first(cfg.test_per_client)
    return Splits(*(s.apart(s.index) for s in three), *(s.apart(s.source) for s in three))


def _check_test_part(cfg: DataConfig, raw: Raw) -> None:
    """Raise DataError for a share of test samples that nothing is cut by."""
    cut = cfg.cuts_anew or not len(raw.test_y)
    if cfg.kind in PERHAPS and not cut and cfg.test_fraction != DataConfig.test_fraction:
        raise DataError(
            f"data.test_fraction={cfg.test_fraction}: without effect: data.name={cfg.name} has test "
            "samples; data.pool=true or data.train_only=true would cut new ones"
        )


def needed(cfg: DataConfig, raw: Raw, most: int) -> int:
    """Samples of the training part that leave a client data.min_size after its cuts.

    Raises:
        DataError: data.train_per_client, or `most`, the samples of the whole part, does not suffice.
    """
    has_test = _has_test(cfg, raw)

    def left(n: int) -> int:
        rest = n if has_test else n - max(1, count(cfg.test_fraction, n))
        rest = min(rest, cfg.train_per_client or rest)
        return rest if raw.valid is not None else rest - count(cfg.valid_fraction, rest)

    found = bisect_left(range(most + 1), cfg.min_size, key=left)
    if found > most:
        raise DataError(
            f"data.min_size={cfg.min_size}: a client with all {most} samples trains on {left(most)} after "
            "the cuts for test and validation and data.train_per_client; lower data.min_size"
        )
    return found


def _has_test(cfg: DataConfig, raw: Raw) -> bool:
    return len(raw.test_y) > 0 and not (cfg.pool or cfg.train_only)


def _check_left(cfg: DataConfig, raw: Raw, part: Partition, train: list[int], test: list[int]) -> None:
    """Raise DataError, with the numbers, if a client is left with too few training or test samples."""
    bounded = cfg.partition in USED_BY["min_size"]
    low = cfg.min_size if bounded else 1
    short = [k for k, (n, tests) in enumerate(zip(train, test, strict=True)) if n < low or not tests]
    if short:
        k = short[0]
        raise DataError(
            f"client {k}{_name(raw, part, k)} is left with {train[k]} training and {test[k]} test samples "
            f"after the cuts, and needs {low} and 1; {_remedies(cfg, part, bounded, low)}"
        )


def _remedies(cfg: DataConfig, part: Partition, bounded: bool, low: int) -> str:
    """What helps a client that is left with too little."""
    natural = cfg.partition == "natural"
    found = ["give it more samples"] if natural else []
    found += [f"use fewer than {len(part)} clients"] if len(part) > 2 and not natural else []
    leaves = "a larger data.min_size, which leaves such clients out" if natural else "a larger data.min_size"
    found += [leaves] if bounded and low == 1 else []
    found += ["a smaller data.min_size"] if low > 1 else []
    return ", ".join([*found, "or another data.test_fraction"]) if found else "use another data.test_fraction"


def own_splits(sizes: Mapping[str, int], cfg: DataConfig, seed: int) -> dict[str, tuple[str, np.ndarray]]:
    """How one client's own samples are cut, on its device and in a simulation of it.

    Given splits stay as they are; without validation samples data.valid_fraction of the training samples is
    cut off, without test samples data.test_fraction too. The draw depends on the seed and the sizes alone: a
    device has no number when it is asked what it has.

    Args:
        sizes: samples of each split that is given, or {"all": n}.

    Returns:
        {split: (the given one, its rows)}.
    """
    given = WHOLE if WHOLE in sizes else TRAIN
    found = {name: (name, np.arange(n)) for name, n in sizes.items() if name != WHOLE}
    rng = stream(cfg.seed if cfg.seed is not None else seed)
    if given == WHOLE:
        pieces = cut(sizes[WHOLE], cfg.test_fraction, cfg.valid_fraction, rng)
        return {name: (WHOLE, rows) for name, rows in pieces.items()}
    if VALID not in sizes and (valids := count(cfg.valid_fraction, sizes[TRAIN])):
        valid, train = np.split(rng.permutation(sizes[TRAIN]), [valids])
        found |= {TRAIN: (TRAIN, train), VALID: (TRAIN, valid)}
    return found


def _as_on_devices(cfg: DataConfig, raw: Raw) -> bool:
    """Whether clients brought their samples and no key, which devices do not know, deals or limits them."""
    keys = cfg.pool, cfg.train_only, cfg.limit, cfg.train_per_client, cfg.test_per_client
    return raw.own and cfg.partition == "natural" and not any(keys)


def _cut_own(cfg: DataConfig, raw: Raw, part: Partition, seed: int) -> Splits:
    """`own_splits` of each client's samples in the order of its files."""
    found: dict[str, Indices] = {name: [] for name in SPLITS}
    for train, test in zip(part.train, part.test, strict=True):
        given = {TRAIN: train, TEST: test} if len(raw.test_y) else {WHOLE: train}
        if raw.valid is not None:
            given |= {TRAIN: train[~raw.valid[train]], VALID: train[raw.valid[train]]}
        cuts = own_splits({name: len(index) for name, index in given.items()}, cfg, seed)
        for name in SPLITS:
            of, rows = cuts.get(name, (TRAIN, np.empty(0, dtype=np.int64)))
            found[name].append(given[of][rows])
    _check_left(cfg, raw, part, *([len(i) for i in found[name]] for name in (TRAIN, TEST)))
    sources = ([np.zeros_like(i) for i in found[name]] for name in SPLITS)
    return Splits(*(found[name] for name in SPLITS), *sources)


def _client_stream(seed: int, k: int) -> Stream:
    """`stream(seed, CUT, k)` as one of many that draw together."""
    found = Stream(seed, CUT, k)
    found.key = [seed, CUT, k]
    return found


def _name(raw: Raw, part: Partition, k: int) -> str:
    """What client k is called, where the set names its clients."""
    return f" ('{raw.names[part.truth['owner'][k]]}')" if raw.names and "owner" in part.truth else ""


def _orders(streams: Sequence[Stream], sizes: np.ndarray) -> np.ndarray:
    """`permutation(n)` of each stream for its n of `sizes`, one after the other."""
    most = max(int(sizes.max()), 1)
    found, some = [], max(1, ROOM // most)
    for first in range(0, len(streams), some):
        n = sizes[first : first + some]
        top = max(int(n.max()), 1)
        at_least_one = np.maximum(n, 1).tolist()  # of one nothing is drawn
        drawn = shuffled_each(streams[first : first + some], at_least_one, top, 1, 0, (1, top))
        found.append(drawn.numpy()[:, 0][np.arange(top) < n[:, None]])
    return np.concatenate(found)


def _cut(
    samples: Samples, same: np.ndarray, fraction: float, streams: Sequence[Stream], least: int = 0
) -> tuple[Samples, Samples]:
    """(chosen, rest): `fraction` of each client's different samples; copies of one stay on one side."""
    width, clients = int(same.max()) + 1, len(samples.sizes)
    ids, which = np.unique(samples.client * width + same[samples.index], return_inverse=True)
    different = Samples(ids, ids, np.bincount(ids // width, minlength=clients))
    count = np.maximum(least, (fraction * different.sizes + 1e-9).astype(np.int64))  # 0.29 * 100 is 28.999...
    order = _orders(streams, different.sizes) + different.starts[different.client]
    taken = np.zeros(len(ids), dtype=bool)
    taken[order[different.place < count[different.client]]] = True
    mask = taken[which]
    return samples.where(mask), samples.where(~mask)
