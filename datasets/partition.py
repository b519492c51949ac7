"""How samples become clients. Pure functions of labels (or owners), client number and generator.

Each rule deals the training and the test part alike: rule(train, test, num_clients, rng, **options)
with the class numbers of both parts; sample numbers of the result count from 0 in each part.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator

from fedpers.core.errors import DataError, unknown
from fedpers.datasets.dirichlet import dirichlet
from fedpers.datasets.sources import mixture, permutations, rotations
from fedpers.datasets.split import Indices, Partition, both, by_owner, check_sizes, evenly


def iid(train: np.ndarray, test: np.ndarray, num_clients: int, rng: Generator) -> Partition:
    """All samples shuffled and dealt evenly."""
    return Partition(*both(lambda y: evenly(rng.permutation(len(y)), num_clients), train, test))


def draw_classes(labels: np.ndarray, num_clients: int, k: int, rng: Generator) -> np.ndarray:
    """`k` of the classes in `labels` for each client, uniformly without replacement, [N, k].

    If a class has no owner, the first clients are reassigned to consecutive runs of a random
    permutation of the classes, so that every class has one (as far as N·k reaches).
    """
    classes = np.unique(labels)
    if k > len(classes):
        raise DataError(f"data.classes_per_client is {k}, but there are {len(classes)} classes")
    lists = np.stack([rng.permutation(classes)[:k] for _ in range(num_clients)])
    if len(np.unique(lists)) < len(classes):
        runs = -(-len(classes) // k)
        cover = np.resize(rng.permutation(classes), (runs, k))  # the last run wraps around
        lists[:runs] = cover[:num_clients]
    return np.sort(lists, axis=1)


def round_robin(labels: np.ndarray, lists: np.ndarray, rng: Generator) -> Indices:
    """Deal the samples of each class one at a time, cyclically, to the clients that own it."""
    dealt, owner = [], []
    for c in np.unique(lists):
        samples = rng.permutation(np.flatnonzero(labels == c))
        dealt.append(samples)
        owner.append(np.resize(np.flatnonzero((lists == c).any(axis=1)), len(samples)))
    return by_owner(np.concatenate(dealt), np.concatenate(owner), len(lists))


def _ownership(lists: np.ndarray, train: np.ndarray) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    owned = np.zeros((len(lists), int(train.max()) + 1), dtype=np.int64)
    np.put_along_axis(owned, lists, 1, axis=1)
    orphans = np.setdiff1d(np.unique(train), lists)
    text = f"classes without an owner, unused: {', '.join(map(str, orphans))}"
    return {"classes": owned}, (text,) if len(orphans) else ()


def classes(
    train: np.ndarray, test: np.ndarray, num_clients: int, rng: Generator, classes_per_client: int
) -> Partition:
    """K classes for each client, the same for both parts, dealt round-robin (PFLEGO)."""
    lists = draw_classes(train, num_clients, classes_per_client, rng)
    parts = both(lambda y: round_robin(y, lists, rng), train, test)
    return Partition(*parts, *_ownership(lists, train))


def sampled(
    train: np.ndarray,
    test: np.ndarray,
    num_clients: int,
    rng: Generator,
    classes_per_client: int,
    train_per_client: int | None,
    test_per_client: int | None,
) -> Partition:
    """K classes for each client; each draws its samples from them by itself, so clients may share.

    Within a client no sample comes twice (unified framework's real data).
    """
    lists = draw_classes(train, num_clients, classes_per_client, rng)

    def draw(labels: np.ndarray, count: int | None) -> Indices:
        pools = [np.flatnonzero(np.isin(labels, owned)) for owned in lists]
        return [np.sort(rng.permutation(pool)[:count]) for pool in pools]

    parts = draw(train, train_per_client), draw(test, test_per_client)
    return Partition(*parts, *_ownership(lists, train))


def shards(
    train: np.ndarray, test: np.ndarray, num_clients: int, rng: Generator, shards_per_client: int
) -> Partition:
    """Samples sorted by label and cut into runs; each client gets some runs at random (FedAvg)."""
    hands = rng.permutation(num_clients * shards_per_client).reshape(num_clients, -1)

    def deal(labels: np.ndarray) -> Indices:
        runs = evenly(np.argsort(labels, kind="stable"), hands.size)
        return [np.concatenate([runs[i] for i in hand]) for hand in hands]

    return Partition(deal(train), deal(test))


def groups(
    train: np.ndarray,
    test: np.ndarray,
    num_clients: int,
    rng: Generator,
    num_groups: int,
    groups: tuple[tuple[int, ...], ...] = (),
    clients_per_group: tuple[int, ...] = (),
    random_groups: bool = False,
) -> Partition:
    """Disjoint groups of labels; a client draws from one group, whose samples are dealt evenly.

    Without given `groups` the labels are shuffled and cut evenly (10 digits in 4: 3, 3, 2, 2).
    """
    labels = [np.array(g) for g in groups] or evenly(rng.permutation(np.unique(train)), num_groups)
    if sum(map(len, labels)) != len(np.unique(np.concatenate(labels))):
        raise DataError(f"data.groups {groups} name a label twice; groups must be disjoint")
    group = assign(num_clients, len(labels), rng, clients_per_group, random_groups)

    def deal(y: np.ndarray) -> Indices:
        hands: Indices = [np.empty(0, dtype=np.int64)] * num_clients
        for g, members in enumerate(labels):
            clients = np.flatnonzero(group == g)
            samples = rng.permutation(np.flatnonzero(np.isin(y, members)))
            for client, hand in zip(clients, evenly(samples, len(clients)), strict=True):
                hands[client] = hand
        return hands

    return Partition(deal(train), deal(test), {"group": group})


def assign(
    num_clients: int, count: int, rng: Generator, sizes: tuple[int, ...] = (), random: bool = False
) -> np.ndarray:
    """The group of each client [N]: runs of given or even sizes, or random with none empty."""
    if count > num_clients:
        raise DataError(f"{count} groups need at least as many clients; data.num_clients is {num_clients}")
    if sizes and (len(sizes) != count or sum(sizes) != num_clients):
        raise DataError(
            f"data.clients_per_group {sizes} does not fit {count} groups and {num_clients} clients"
        )
    if random:
        first = np.arange(count)
        rest = rng.integers(0, count, num_clients - count)
        return rng.permutation(np.concatenate([first, rest]))
    return np.repeat(np.arange(count), sizes or [len(r) for r in evenly(np.arange(num_clients), count)])


def natural(
    train: np.ndarray,
    test: np.ndarray,
    num_clients: int | None,
    rng: Generator,
    min_size: int = 1,
    trained: np.ndarray | None = None,
) -> Partition:
    """The owners that the set names (writers, alphabets); `train` and `test` are owner numbers.

    Owners with fewer than `min_size` training samples (of the mask `trained`, if some are for validation), or
    without a test sample where the set has a test part, are left out; of the others `num_clients` are chosen
    at random (None: all).
    """
    size = int(max(train.max(), test.max(initial=0))) + 1
    tests, there = np.bincount(test, minlength=size), np.bincount(train, minlength=size) > 0
    enough = np.bincount(train if trained is None else train[trained], minlength=size) >= min_size
    tested = (tests > 0) if len(test) else there
    owners = np.flatnonzero(enough & tested)
    if not (tested & there).any():
        raise DataError(_apart(int(there.sum()), int(tested.sum())))
    known = there | (tests > 0)
    few = int((known & ~enough).sum())
    reasons = f"{few} have fewer than {min_size} samples (data.min_size and the cuts)"
    if len(test):
        reasons += f", {int((enough & ~tested).sum())} enough of them and no test sample"
    if not len(owners) or (num_clients is not None and num_clients > len(owners)):
        raise DataError(
            f"data.num_clients is {num_clients or 'all'}, but the set has {len(owners)} natural clients with "
            f"enough samples: {reasons}; lower data.num_clients or data.min_size"
        )
    left = int(known.sum()) - len(owners)
    notes = (f"{left} natural clients are left out: {reasons}",) if left else ()
    if num_clients is not None:
        owners = np.sort(rng.permutation(owners)[:num_clients])

    def deal(y: np.ndarray) -> Indices:
        pieces = by_owner(np.arange(len(y)), y, size)
        return [pieces[owner] for owner in owners]

    parts = both(deal, train, test)
    return Partition(*parts, {"owner": owners}, notes)


def _apart(train: int, test: int) -> str:
    return (
        f"no natural client is in both parts of the set: {train} in the training part only, {test} in the "
        "test part only, as if split by user; set data.pool=true, which cuts each client's samples anew, or "
        "get the set split by sample (LEAF's preprocess.sh: -t sample)"
    )


@dataclass(frozen=True)
class Rule:
    """A row of PARTITIONS."""

    deal: Callable[..., Partition]
    text: str
    options: tuple[str, ...] = ()  # keys of DataConfig that it takes
    by_class: bool = True  # needs class numbers, so a regression cannot be dealt by it


PARTITIONS: dict[str, Rule] = {
    "iid": Rule(iid, "shuffled and dealt evenly", by_class=False),
    "classes": Rule(classes, "K classes per client, dealt round-robin", ("classes_per_client",)),
    "sampled": Rule(
        sampled,
        "K classes per client, drawn independently (clients may share)",
        ("classes_per_client", "train_per_client", "test_per_client"),
    ),
    "shards": Rule(shards, "sorted by label, some runs per client", ("shards_per_client",)),
    "dirichlet": Rule(
        dirichlet,
        "class shares drawn from a Dirichlet distribution",
        ("alpha", "min_size", "num_clusters", "balanced"),
    ),
    "groups": Rule(
        groups,
        "disjoint groups of labels, each client in one group",
        ("num_groups", "groups", "clients_per_group", "random_groups"),
    ),
    "rotations": Rule(
        rotations, "dealt evenly; groups of clients see rotated images", ("rotations",), by_class=False
    ),
    "permutations": Rule(
        permutations, "dealt evenly; groups of clients number the classes differently", ("num_groups",)
    ),
    "mixture": Rule(
        mixture,
        "each client blends several sources in its own proportions",
        ("sources", "mixture", "replacement", "min_samples", "max_samples", "test_fraction"),
    ),
    "natural": Rule(natural, "the clients that the set itself names", ("min_size",), by_class=False),
}


def partition(
    name: str, train: np.ndarray, test: np.ndarray, num_clients: int | None, rng: Generator, **options: Any
) -> Partition:
    """Apply the rule `name`, and make sure that every client has samples.

    Raises:
        DataError: the rule is unknown, or the samples do not suffice.
    """
    if name not in PARTITIONS:
        raise DataError(unknown("data.partition", name, PARTITIONS))
    result = PARTITIONS[name].deal(train, test, num_clients, rng, **options)
    check_sizes(result, has_test=len(test) > 0, min_size=options.get("min_size", 1))
    return result
