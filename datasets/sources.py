"""Partitions in which clients see the set differently: rotated, renumbered, or as a mixture."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from fedpers.core.errors import DataError, unknown
from fedpers.datasets.split import Indices, Partition, Source, both, evenly

LETTERS = {"upper": 10, "lower": 36}  # first of the 26 among the 62 classes of EMNIST


def _groups(num_clients: int, count: int) -> np.ndarray:
    if count > num_clients:
        raise DataError(f"{count} groups need at least as many clients; data.num_clients is {num_clients}")
    return np.concatenate([np.full(len(r), g) for g, r in enumerate(evenly(np.arange(num_clients), count))])


def _grouped(
    train: np.ndarray, test: np.ndarray, num_clients: int, rng: Generator, sources: Sequence[Source]
) -> Partition:
    """Deal evenly; clients of group g see everything through sources[g]."""
    group = _groups(num_clients, len(sources))
    parts = both(lambda y: evenly(rng.permutation(len(y)), num_clients), train, test)
    seen = [[np.full(len(i), g) for i, g in zip(p, group, strict=True)] for p in parts]
    return Partition(*parts, {"group": group}, (), tuple(sources), seen[0], seen[1])


def rotations(
    train: np.ndarray, test: np.ndarray, num_clients: int, rng: Generator, rotations: tuple[int, ...]
) -> Partition:
    """One group of clients for each rotation, in degrees counter-clockwise."""
    return _grouped(train, test, num_clients, rng, [Source(d // 90) for d in rotations])


def permutations(
    train: np.ndarray, test: np.ndarray, num_clients: int, rng: Generator, num_groups: int
) -> Partition:
    """Groups of clients that number the classes differently; group 0 keeps the numbers."""
    size = int(train.max()) + 1
    one, *others = rng.spawn(num_groups)  # the deal does not depend on the number of groups
    maps = [np.arange(size), *(other.permutation(size) for other in others)]
    return _grouped(train, test, num_clients, one, [Source(0, m) for m in maps])


def source_problem(text: str) -> str | None:
    """What is wrong with a source's name (all, lower or upper, then @ and degrees), or None."""
    base, _, degrees = text.partition("@")
    if base not in ("all", *LETTERS):
        return unknown("data.sources", base, ("all", *LETTERS))
    if degrees not in ("", "0", "90", "180", "270"):
        return f"data.sources has '{text}'; degrees are 0, 90, 180 or 270, as in {base}@90"
    return None


def parse_source(text: str, num_classes: int) -> Source:
    """'upper@90' as a Source; the letters keep the class numbers 0..25 in either case.

    Raises:
        DataError: lower or upper is asked of a set without 62 classes (digits, upper, lower).
    """
    base, _, degrees = text.partition("@")
    turns = int(degrees or 0) // 90
    if base == "all":
        return Source(turns)
    if num_classes != 62:
        raise DataError(
            f"data.sources has '{text}', but the set has {num_classes} classes; "
            "letters by case need emnist_byclass or femnist"
        )
    labels = np.full(62, -1)
    labels[LETTERS[base] : LETTERS[base] + 26] = np.arange(26)
    return Source(turns, labels)


@dataclass(frozen=True)
class Shares:
    """A row of MIXTURES: proportions of `count` sources for N clients, [N, count]."""

    draw: Callable[[int, int, Generator], np.ndarray]
    two: bool = True  # only defined for two sources


def _two_camps(minority: float, *, in_turn: bool = False) -> Callable[[int, int, Generator], np.ndarray]:
    def draw(num_clients: int, count: int, rng: Generator) -> np.ndarray:
        clients = np.arange(num_clients)
        first = np.where(clients % 2 == 0 if in_turn else clients < num_clients / 2, minority, 1 - minority)
        return np.stack([first, 1 - first], axis=1)

    return draw


def _linear(num_clients: int, count: int, rng: Generator) -> np.ndarray:
    first = (np.arange(num_clients) + 0.5) / num_clients
    return np.stack([first, 1 - first], axis=1)


def _random(num_clients: int, count: int, rng: Generator) -> np.ndarray:
    cuts = np.sort(rng.random((num_clients, count - 1)), axis=1)
    return np.diff(cuts, axis=1, prepend=0, append=1)


MIXTURES: dict[str, Shares] = {
    "10:90": Shares(_two_camps(0.1)),
    "10:90 in turn": Shares(_two_camps(0.1, in_turn=True)),  # so the last clients are of both camps
    "30:70": Shares(_two_camps(0.3)),
    "linear": Shares(_linear),
    "random": Shares(_random, two=False),
}


def whole_counts(shares: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Each client's samples from each source [N, S]: floor(share·n), the last gets the rest."""
    # 0.1 * 190 must floor to 19 although it may be 18.999...
    counts = np.floor(shares * sizes[:, None] + 1e-9).astype(np.int64)
    counts[:, -1] = sizes - counts[:, :-1].sum(axis=1)
    return counts


def mixture(
    train: np.ndarray,
    test: np.ndarray,
    num_clients: int,
    rng: Generator,
    sources: tuple[str, ...],
    mixture: str,
    replacement: bool,
    min_samples: int,
    max_samples: int,
    test_fraction: float,
) -> Partition:
    """Each client blends `sources` in its own proportions (FedSoft).

    n_k is uniform in min_samples..max_samples; a client has test_fraction·n_k test samples in the
    same proportions. With `replacement` a class is drawn uniformly, then an image of it; without,
    no image is used twice.
    """
    size = int(max(train.max(), test.max(initial=0))) + 1
    ways = tuple(parse_source(text, size) for text in sources)
    n = rng.integers(min_samples, max_samples + 1, num_clients)
    shares = MIXTURES[mixture].draw(num_clients, len(ways), rng)
    counts = whole_counts(shares, n)
    tests = whole_counts(shares, np.ceil(n * test_fraction).astype(np.int64))
    if not len(test):  # clients cut theirs from the training samples
        tests = np.zeros_like(tests)
    seen = [[np.repeat(np.arange(len(ways)), row) for row in c] for c in (counts, tests)]
    membership = counts / n[:, None]
    truth = {"membership": membership, "group": membership.argmax(axis=1)}
    return Partition(
        _blend(train, counts, ways, replacement, rng),
        _blend(test, tests, ways, replacement, rng),
        truth,
        (),
        ways,
        *seen,
    )


def _blend(
    labels: np.ndarray, counts: np.ndarray, ways: tuple[Source, ...], replacement: bool, rng: Generator
) -> Indices:
    """Sample numbers of each client, source by source."""
    if replacement and len(labels):
        draws = [
            uniform_classes(eligible(labels, way), labels, int(total), rng)
            for way, total in zip(ways, counts.sum(axis=0), strict=True)
        ]
    else:
        draws = _disjoint(labels, counts.sum(axis=0), ways, rng)
    pieces = [np.split(d, np.cumsum(counts[:-1, s])) for s, d in enumerate(draws)]
    return [np.concatenate(hand) for hand in zip(*pieces, strict=True)]


def eligible(labels: np.ndarray, way: Source) -> np.ndarray:
    """Sample numbers that belong to a source."""
    return np.flatnonzero(way.labels[labels] >= 0) if way.labels is not None else np.arange(len(labels))


def uniform_classes(pool: np.ndarray, labels: np.ndarray, count: int, rng: Generator) -> np.ndarray:
    """`count` draws with replacement: a class uniformly, then one of its samples in `pool`."""
    pool = pool[np.argsort(labels[pool], kind="stable")]
    _, starts, sizes = np.unique(labels[pool], return_index=True, return_counts=True)
    drawn = rng.integers(0, len(starts), count)
    return pool[starts[drawn] + rng.integers(0, sizes[drawn])]


def _disjoint(labels: np.ndarray, totals: np.ndarray, ways: tuple[Source, ...], rng: Generator) -> Indices:
    """Samples for each source, none twice, also not in two sources."""
    used = np.zeros(len(labels), dtype=bool)
    draws = []
    for way, total in zip(ways, totals, strict=True):
        pool = eligible(labels, way)
        pool = rng.permutation(pool[~used[pool]])
        if len(pool) < total:
            raise DataError(
                f"a mixture without replacement needs {total} samples of a source and "
                f"{len(pool)} are left; lower data.num_clients or data.max_samples, or "
                "set data.replacement=true"
            )
        draws.append(pool[:total])
        used[pool[:total]] = True
    return draws
