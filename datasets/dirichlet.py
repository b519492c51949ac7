"""The Dirichlet partition: each class spread over the clients in random shares."""

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from fedpers.core.errors import DataError
from fedpers.datasets.split import Indices, Partition, by_owner, evenly

REDRAWS = 100  # of the shares, at most
FEW = 12  # clients that fall short: with more in each of some draws, no further draw is worth its time
TRIALS = 3  # draws before that is judged
MOVED = 10  # one of so many samples may go to another client than its share says


def dirichlet(
    train: np.ndarray,
    test: np.ndarray,
    num_clients: int,
    rng: Generator,
    alpha: float,
    min_size: int,
    num_clusters: int | None = None,
    balanced: bool = False,
) -> Partition:
    """Each class spread over the clients in shares ~ Dirichlet(alpha), the same for both parts.

    With `balanced` a client that has its even part of the training samples gets none of the classes after,
    whose shares are scaled up for the others: the rule of NIID-Bench, PFLlib, FedLab and APPFL.

    With `num_clusters` the shares are drawn for random clusters of classes instead. They are drawn again, at
    most REDRAWS times, until each client has `min_size` training samples and a test sample (without a test
    part, which is cut from its own: two samples). With many clients no draw gives that to all; then those who
    fall short get what they lack of the class that they have the largest share in, from who has most of it.

    Raises:
        DataError: more than one of MOVED samples would have to be moved.
    """
    cluster = label_clusters(train, num_clusters, rng)
    lows = (min_size, 1) if len(test) else (max(min_size, 2), 0)
    short: list[int] = []
    while True:
        shares = rng.dirichlet(np.full(num_clients, alpha), int(cluster.max()) + 1)  # [G, N]
        shares = capped(shares, np.bincount(cluster[train], minlength=len(shares))) if balanced else shares
        hands = [Hands.dealt(cluster[part], shares, rng) for part in (train, test)]
        short.append(sum(int((h.sizes < low).sum()) for h, low in zip(hands, lows, strict=True)))
        hopeless = len(short) >= TRIALS and min(short) > FEW
        if not short[-1] or hopeless or len(short) == REDRAWS:
            break
    missing = [h.missing(low) for h, low in zip(hands, lows, strict=True)]
    if any(not h.can_spare(low) for h, low in zip(hands, lows, strict=True)):
        raise DataError(_too_few(alpha, min_size, num_clients, hands, short))
    for h, low in zip(hands, lows, strict=True):
        h.mend(low, shares)
    notes = (_mended(missing, num_clients, len(short)),) if short[-1] else ()
    return Partition(hands[0].indices(), hands[1].indices(), {"shares": shares.T}, notes)


def portions(shares: np.ndarray, size: int) -> np.ndarray:
    """[N] samples of `size` that each client gets by its share of them."""
    cuts = (np.cumsum(shares)[:-1] * size).astype(np.int64)
    return np.diff(cuts, prepend=0, append=size)


def capped(shares: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The shares [G, N] of clusters of so many samples, where who holds sum(sizes) / N gets no more.

    Cluster after cluster, as the code of Li, Diao, Chen, He, "Federated Learning on Non-IID Data Silos".
    """
    N = shares.shape[1]
    held, found = np.zeros(N, dtype=np.int64), []
    for row, size in zip(shares, sizes.tolist(), strict=True):
        free = (held * N < sizes.sum()) | (size == 0)
        row = np.where(free, row, 0)
        row = row / row.sum() if row.sum() > 0 else free / free.sum()  # all shares of the others may be 0
        held += portions(row, size)
        found.append(row)
    return np.stack(found)


@dataclass
class Hands:
    """The samples of each cluster in random order, and how many of them each client gets, [G, N]."""

    samples: list[np.ndarray]
    counts: np.ndarray

    @classmethod
    def dealt(cls, cluster: np.ndarray, shares: np.ndarray, rng: Generator) -> "Hands":
        """Cut each cluster by its row of shares [G, N]; `cluster` is that of each sample."""
        samples = [rng.permutation(np.flatnonzero(cluster == g)) for g in range(len(shares))]
        return cls(
            samples, np.stack([portions(s, len(rows)) for s, rows in zip(shares, samples, strict=True)])
        )

    @property
    def sizes(self) -> np.ndarray:
        """Samples of each client."""
        return self.counts.sum(0)

    @property
    def total(self) -> int:
        """Samples of all clients."""
        return int(self.counts.sum())

    def missing(self, low: int) -> int:
        """Samples that clients lack to have `low` each."""
        return int((low - self.sizes).clip(min=0).sum())

    def can_spare(self, low: int) -> bool:
        """Whether few samples are missing, and there are enough for all."""
        return self.missing(low) * MOVED <= self.total and low * self.counts.shape[1] <= self.total

    def mend(self, low: int, shares: np.ndarray) -> None:
        """Give what each client lacks to have `low` samples; nobody who gives falls short."""
        givers: dict[int, list[tuple[int, int]]] = {}
        sizes = self.sizes
        for k in np.flatnonzero(sizes < low).tolist():
            liked = np.argsort(-shares[:, k], kind="stable").tolist()
            while sizes[k] < low:
                self._give(k, low, liked, sizes, givers)

    def _give(
        self, k: int, low: int, liked: list[int], sizes: np.ndarray, givers: dict[int, list[tuple[int, int]]]
    ) -> None:
        """Move one sample to client k, of the first cluster in `liked` that somebody can spare one of."""
        for g in liked:
            if g not in givers:
                givers[g] = [(-n, i) for i, n in enumerate(self.counts[g].tolist()) if n]
                heapq.heapify(givers[g])
            while givers[g]:
                n, giver = heapq.heappop(givers[g])
                if sizes[giver] > low:
                    self.counts[g, giver] -= 1
                    self.counts[g, k] += 1
                    sizes[giver] -= 1
                    sizes[k] += 1
                    if n < -1:
                        heapq.heappush(givers[g], (n + 1, giver))
                    return
        raise AssertionError("no samples to spare, though few are missing")

    def indices(self) -> Indices:
        """Each client's samples, cluster after cluster."""
        N = self.counts.shape[1]
        owners = [np.repeat(np.arange(N), n) for n in self.counts]
        return by_owner(np.concatenate(self.samples), np.concatenate(owners), N)


def label_clusters(labels: np.ndarray, count: int | None, rng: Generator) -> np.ndarray:
    """The cluster of each class [C]: its own, or one of `count` random ones of even size."""
    size = int(labels.max()) + 1
    if count is None:
        return np.arange(size)
    cluster = np.zeros(size, dtype=np.int64)
    for g, members in enumerate(evenly(rng.permutation(np.unique(labels)), count)):
        cluster[members] = g
    return cluster


def _mended(missing: list[int], num_clients: int, draws: int) -> str:
    moved = " and ".join(f"{m} {name}" for m, name in zip(missing, ("training", "test"), strict=True) if m)
    return (
        f"none of {draws} Dirichlet draws gave each of {num_clients} clients its minimum: {moved} samples "
        "went to the clients that fell short, from those with most of the class"
    )


def _too_few(alpha: float, min_size: int, num_clients: int, hands: list[Hands], short: list[int]) -> str:
    train, test = (h.total for h in hands)
    return (
        f"no Dirichlet partition with data.alpha={alpha} in {len(short)} draws gave each of {num_clients} "
        f"clients {min_size} (data.min_size and the cuts) of {train} training samples and one of {test} test "
        f"samples (at best {min(short)} fell short, too many to move samples: at most one in {MOVED}); "
        "raise data.alpha, lower data.min_size or data.num_clients, or set data.pool=true"
    )
