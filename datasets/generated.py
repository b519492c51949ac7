"""Federations whose clients are distributions: samples are drawn when a client is first asked for.

Validation samples are drawn in addition to the training samples, so a client trains on exactly as
many samples as the paper's generator gives it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.random import Generator

from fedpers.core.data import ClientData, Data, Federation
from fedpers.datasets.config import DataConfig
from fedpers.datasets.federation import rebuild_clients, stream

SETUP, TRAIN, VALID, TEST, HOLDOUT = range(10, 15)  # streams of random numbers; federation.py has 0..4
Draw = Callable[[int, int, Generator], tuple[np.ndarray, np.ndarray]]
Samples = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class ClientDistributions:
    """The distribution of each client's samples, and how many it has."""

    draw: Draw  # (client, samples, rng) -> x [n, d], y [n]
    num_train: np.ndarray  # [N]
    num_test: np.ndarray  # [N]
    dim: int
    task: str  # binary | regression
    truth: dict[str, np.ndarray] = field(default_factory=dict)
    source: Draw | None = None  # (source, samples, rng): one source's distribution
    num_sources: int = 0


class GeneratedClients:
    """client(k): drawn on the first call from streams keyed by (seed, split, k), then kept."""

    def __init__(self, cfg: DataConfig, seed: int, dtype: torch.dtype, dists: ClientDistributions) -> None:
        self.cfg, self.seed, self.dtype, self.dists = cfg, seed, dtype, dists
        self.num_valid = np.ceil(cfg.valid_fraction * dists.num_train).astype(np.int64)
        self._kept: dict[int, ClientData] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return rebuild_clients, (self.cfg, self.seed, self.dtype)

    def __call__(self, k: int) -> ClientData:
        if k not in self._kept:
            dists = self.dists
            sizes = ((TRAIN, dists.num_train[k]), (VALID, self.num_valid[k]), (TEST, dists.num_test[k]))
            self._kept[k] = ClientData(*(self._data(self.draw(k, int(n), split)) for split, n in sizes))
        return self._kept[k]

    def draw(self, k: int, n: int, split: int) -> Samples:
        """`n` samples of client k for a split, as arrays."""
        return self.dists.draw(k, n, stream(self.seed, split, k))

    def _data(self, drawn: Samples) -> Data:
        return to_data(*drawn, self.dists.task, self.dtype)


def to_data(x: np.ndarray, y: np.ndarray, task: str, dtype: torch.dtype) -> Data:
    """Arrays as a split."""
    inputs = torch.from_numpy(x).to(dtype)
    targets = torch.from_numpy(y).to(dtype if task == "regression" else torch.int64)
    return Data(inputs, targets, torch.ones(len(x), dtype=dtype))


def federation(cfg: DataConfig, seed: int, dtype: torch.dtype, dists: ClientDistributions) -> Federation:
    """The federation whose clients draw from `dists`."""
    clients = GeneratedClients(cfg, seed, dtype, dists)
    count = len(dists.num_train)
    counts = np.zeros((count, 0), dtype=np.int64)
    if dists.task == "binary":
        ones = [int(clients.draw(k, int(n), TRAIN)[1].sum()) for k, n in enumerate(dists.num_train)]
        counts = np.stack([dists.num_train - ones, ones], axis=1)
    return Federation(
        name=cfg.name,
        num_clients=count,
        input_shape=(dists.dim,),
        num_classes=1,
        task=dists.task,
        client=clients,
        num_train=dists.num_train,
        num_test=dists.num_test,
        label_counts=counts,
        truth=dists.truth,
        holdout=_holdout(cfg, seed, dtype, dists),
    )


def _holdout(cfg: DataConfig, seed: int, dtype: torch.dtype, dists: ClientDistributions) -> dict[str, Data]:
    if not cfg.holdout or dists.source is None:
        return {}
    drawn = [dists.source(s, cfg.holdout, stream(seed, HOLDOUT, s)) for s in range(dists.num_sources)]
    return {f"source{s}": to_data(x, y, dists.task, dtype) for s, (x, y) in enumerate(drawn)}
