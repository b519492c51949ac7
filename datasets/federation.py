"""A set and a partition to a federation: clients with three splits, converted to tensors on first use."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from fedpers.core.data import ClientData, Data, Federation
from fedpers.core.errors import ConfigError, DataError
from fedpers.core.tasks import CLASSED, TASKS, WHOLE_NUMBERS
from fedpers.datasets.config import DataConfig
from fedpers.datasets.cuts import DEAL, HOLDOUT, LIMIT, LOAD, Samples, Splits, cut_clients, needed, stream
from fedpers.datasets.partition import PARTITIONS, partition
from fedpers.datasets.public import hold_back, note
from fedpers.datasets.raw import Raw
from fedpers.datasets.registry import data_sets
from fedpers.datasets.sources import eligible, uniform_classes
from fedpers.datasets.split import Partition, Seen, Source
from fedpers.datasets.transform import make_pipeline


def load_federation(cfg: DataConfig, seed: int, dtype: torch.dtype = torch.float32) -> Federation:
    """The clients of `cfg`; the same ones for the same seed (data.seed, if set, comes first).

    Raises:
        ConfigError: a key of `cfg` is wrong (all mistakes at once).
        DataError: a file is missing or damaged, or the samples do not suffice.
    """
    problems = cfg.check()
    if problems:
        raise ConfigError(*problems)
    entry = data_sets()[cfg.kind]
    seed = seed if cfg.seed is None else cfg.seed
    if entry.clients:
        made: Federation = entry.function(cfg, seed, dtype)
        return made
    return build(cfg, entry.function(cfg, stream(seed, LOAD)), seed, dtype)


def build(cfg: DataConfig, raw: Raw, seed: int, dtype: torch.dtype) -> Federation:
    """The federation of `raw` under data.partition."""
    _check_labels(cfg, raw)
    part = _deal(cfg, raw, seed)
    splits, index, source = hold_back(cfg, raw, cut_clients(cfg, raw, part, seed), seed)
    clients = PartitionedClients(cfg, seed, dtype, raw, part, splits)
    local = cfg.label_space == "local"
    num_classes = _outputs(raw, part)
    width = max(map(len, clients.classes)) if local else num_classes
    return Federation(
        name=cfg.name,
        num_clients=len(part),
        input_shape=tuple(raw.x.shape[1:]),
        num_classes=1 if TASKS[raw.task].one_output else width,
        task=raw.task,
        client=clients,
        num_train=np.array([len(i) for i in splits.train]),
        num_test=np.array([len(i) for i in splits.test]),
        label_counts=clients.label_counts(width),
        truth={**part.truth, **({"classes": clients.owned(num_classes)} if local else {})},
        notes=(*raw.notes, *part.notes, *note(len(index))),
        holdout=_holdout(cfg, raw, part, seed, clients),
        public=clients.samples(index, source) if len(index) else None,
        tokens=raw.tokens,
        pipeline=clients.pipeline,
        clients=_names(raw, part),
    )


def _check_labels(cfg: DataConfig, raw: Raw) -> None:
    """Raise DataError for a label that is no class of the set."""
    y, classes = raw.labels, 2 if raw.task == "binary" else raw.num_classes
    strange = y[(y < 0) | (y >= classes)] if raw.task in CLASSED else y[:0]
    if len(strange):
        raise DataError(
            f"data.name={cfg.name}: has the label {strange[0]} ({len(strange)} samples are of none of its "
            f"{classes} classes, 0 to {classes - 1})"
        )


def _names(raw: Raw, part: Partition) -> tuple[str, ...]:
    """What the set calls the clients; () where a rule made them."""
    return tuple(raw.names[i] for i in part.truth["owner"]) if raw.names and "owner" in part.truth else ()


def _deal(cfg: DataConfig, raw: Raw, seed: int) -> Partition:
    """Apply the partition rule to the samples in use; sample numbers count through the set."""
    train, test = np.arange(len(raw.y)), len(raw.y) + np.arange(len(raw.test_y))
    if cfg.train_only:
        test = test[:0]
    if cfg.limit is not None:
        train, test = _limited(cfg.limit, train, test, stream(seed, LIMIT))
    if cfg.pool:
        train, test = np.concatenate([train, test]), test[:0]
    keys = raw.labels
    if cfg.partition == "natural":
        keys = _owners(cfg, raw)
    elif raw.task not in CLASSED:
        if PARTITIONS[cfg.partition].by_class:
            raise DataError(
                f"data.partition={cfg.partition} splits samples by class, and a {raw.task} task has "
                "no classes; use iid"
            )
        keys = np.zeros(len(keys), dtype=np.int64)
    options = {key: getattr(cfg, key) for key in PARTITIONS[cfg.partition].options}
    if len(train) < (cfg.num_clients or 0):
        raise DataError(
            f"data.num_clients is {cfg.num_clients}, but there are {len(train)} "
            "training samples; use fewer clients or a larger data.limit"
        )
    if options.get("min_size", 1) > 1:  # nobody is left out for a minimum that nobody set
        options["min_size"] = needed(cfg, raw, len(train))
    if cfg.partition == "natural" and raw.valid is not None:
        options["trained"] = ~raw.valid[train]
    part = partition(cfg.partition, keys[train], keys[test], cfg.num_clients, stream(seed, DEAL), **options)
    return replace(part, train=[train[i] for i in part.train], test=[test[i] for i in part.test])


def _owners(cfg: DataConfig, raw: Raw) -> np.ndarray:
    if raw.owner is None or raw.test_owner is None:
        raise DataError(f"data.name={cfg.name} names no clients; choose another data.partition")
    return np.concatenate([raw.owner, raw.test_owner])


def _limited(limit: int, train: np.ndarray, test: np.ndarray, rng: Generator) -> list[np.ndarray]:
    """A random subset of both parts, `limit` samples in all, in their ratio."""
    total = len(train) + len(test)
    if limit >= total:
        return [train, test]
    keep = [round(limit * len(part) / total) for part in (train, test)]
    return [np.sort(rng.permutation(part)[:n]) for part, n in zip((train, test), keep, strict=True)]


def _outputs(raw: Raw, part: Partition) -> int:
    maps = [source.labels for source in part.sources]
    if any(m is None for m in maps):
        return 2 if raw.task == "binary" else raw.num_classes
    return max(int(m.max()) + 1 for m in maps if m is not None)


def rebuild_clients(cfg: DataConfig, seed: int, dtype: torch.dtype) -> Callable[[int], ClientData]:
    """The clients of a federation that was pickled: built anew where they are needed.

    A message to a worker then carries the configuration, not the samples.
    """
    return load_federation(cfg, seed, dtype).client


class PartitionedClients:
    """client(k): tensors of partition k, converted on the first call and then kept."""

    def __init__(
        self, cfg: DataConfig, seed: int, dtype: torch.dtype, raw: Raw, part: Partition, splits: Splits
    ) -> None:
        self.cfg, self.seed, self.dtype = cfg, seed, dtype
        self.raw, self.part, self.splits = raw, part, splits
        self.pipeline = make_pipeline(cfg, raw, splits)
        self.labels = raw.labels
        self.local = cfg.label_space == "local"
        self._kept: dict[int, ClientData] = {}

    def __call__(self, k: int) -> ClientData:
        if k not in self._kept:
            s = self.splits
            self._kept[k] = ClientData(
                train=self.samples(s.train[k], s.train_source[k], k),
                valid=self.samples(s.valid[k], s.valid_source[k], k),
                test=self.samples(s.test[k], s.test_source[k], k),
            )
        return self._kept[k]

    def __reduce__(self) -> tuple[object, ...]:
        return rebuild_clients, (self.cfg, self.seed, self.dtype)

    @cached_property
    def classes(self) -> list[np.ndarray]:
        """The classes of each client, for those who number their own only."""
        return [self._classes(k) for k in range(len(self.part))]

    def label_counts(self, width: int) -> np.ndarray:
        """[N, width] training samples of each class, as clients number them; no columns without classes."""
        s, N = self.splits, len(self.part)
        if self.raw.task not in CLASSED:
            return np.zeros((N, 0), dtype=np.int64)
        if self.local:
            pairs = enumerate(zip(s.train, s.train_source, strict=True))
            return np.stack([np.bincount(self.targets(i, way, k), minlength=width) for k, (i, way) in pairs])
        train = Samples.of(s.train, s.train_source)
        y = relabel(self.labels[train.index], train.source, self.part.sources)
        assert y.min() >= 0 and y.max() < width, "a sample of a class that its source does not have"
        return np.bincount(train.client * width + y, minlength=N * width).reshape(N, width)

    def _classes(self, k: int) -> np.ndarray:
        """The classes that client k has in any split, sorted; of another task none."""
        if self.raw.task not in CLASSED:
            return np.empty(0, dtype=np.int64)
        s = self.splits
        index = np.concatenate([s.train[k], s.valid[k], s.test[k]])
        source = np.concatenate([s.train_source[k], s.valid_source[k], s.test_source[k]])
        return different(relabel(self.labels[index], source, self.part.sources))

    def seen(self, k: int | None) -> Seen | None:
        """How client k (None: all clients) sees the set; None if it sees samples in several ways."""
        ways = self._ways(range(len(self.part)) if k is None else [k])
        if len(ways) != 1:
            return None
        way, names = self.part.sources[ways.pop()], self.pipeline.classes
        if way.labels is not None and names:
            place = {int(way.labels[c]): name for c, name in enumerate(names) if way.labels[c] >= 0}
            names = tuple(place.get(i, f"no class {i}") for i in range(max(place) + 1))
        if self.local:
            names = () if k is None else tuple(names[c] for c in self.classes[k])
        return Seen(way.turns, names)

    def _ways(self, clients: Iterable[int]) -> set[int]:
        """Numbers of the sources of these clients' samples."""
        if len(self.part.sources) == 1:
            return {0}
        s = self.splits
        lists = (s.train_source, s.valid_source, s.test_source)
        return {int(v) for k in clients for source in lists for v in np.unique(source[k])}

    def owned(self, num_classes: int) -> np.ndarray:
        """[N, classes] 1 where a client has samples of a class (class numbers of the set)."""
        out = np.zeros((len(self.classes), num_classes), dtype=np.int64)
        for row, seen in zip(out, self.classes, strict=True):
            row[seen] = 1
        return out

    def targets(self, index: np.ndarray, source: np.ndarray, k: int | None) -> np.ndarray:
        """Class numbers as client k (None: anybody) sees them, or whatever the task's targets are."""
        if self.raw.task not in CLASSED:
            return np.asarray(self.labels[index])
        y = relabel(self.labels[index], source, self.part.sources)
        return y if k is None or not self.local else np.searchsorted(self.classes[k], y)

    def inputs(self, x: np.ndarray) -> Tensor:
        """Stored samples as a model takes them."""
        return self.pipeline.inputs(x, self.dtype)

    def samples(self, index: np.ndarray, source: np.ndarray, k: int | None = None) -> Data:
        """Samples by number, as client k (None: anybody) sees them."""
        x = rotate(self.inputs(self.raw.rows(index)), source, self.part.sources)
        y = torch.from_numpy(np.ascontiguousarray(self.targets(index, source, k)))
        y = y.to(torch.int64 if TASKS[self.raw.task].targets in WHOLE_NUMBERS else x.dtype)
        return Data(x, y, torch.ones(len(index), dtype=x.dtype))


def different(values: np.ndarray) -> np.ndarray:
    """`np.unique` of a client's few values, in a third of its time."""
    values = np.sort(values)
    first = np.ones(len(values), dtype=bool)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return values[first]


def relabel(y: np.ndarray, source: np.ndarray, sources: tuple[Source, ...]) -> np.ndarray:
    """The class numbers after each sample's source."""
    out = y.copy()
    for s, way in enumerate(sources):
        if way.labels is not None:
            out[source == s] = way.labels[y[source == s]]
    return out


def rotate(x: Tensor, source: np.ndarray, sources: tuple[Source, ...]) -> Tensor:
    """The images [n, C, H, W] after each sample's source."""
    for s, way in enumerate(sources):
        mine = torch.from_numpy(source == s)
        if way.turns and mine.any():
            if x.ndim != 4:
                raise DataError("only images can be rotated; choose another data.partition")
            x[mine] = torch.rot90(x[mine], way.turns, dims=(2, 3))
    return x


def _holdout(
    cfg: DataConfig, raw: Raw, part: Partition, seed: int, clients: PartitionedClients
) -> dict[str, Data]:
    """data.holdout test samples from each source distribution, classes drawn uniformly."""
    if not cfg.holdout:
        return {}
    if TASKS[raw.task].targets in ("tokens", "labels"):
        raise DataError(
            f"data.holdout={cfg.holdout} draws samples by class, and a {raw.task} task has no "
            "classes; set it to 0"
        )
    if not len(raw.test_y) or cfg.pool:
        raise DataError(
            f"data.holdout={cfg.holdout} needs a set with a test part of its own, and data.pool=false"
        )
    out, rng = {}, stream(seed, HOLDOUT)
    for s, way in enumerate(part.sources):
        index = uniform_classes(eligible(raw.test_y, way), raw.test_y, cfg.holdout, rng)
        out[f"source{s}"] = clients.samples(len(raw.y) + index, np.full(len(index), s))
    return out
