"""Writes a public data set as one file per client, for demonstrations and tests of deployments."""

from pathlib import Path

import numpy as np
import torch

from fedpers.datasets.config import DataConfig
from fedpers.datasets.federation import load_federation


def deal(cfg: DataConfig, seed: int, out: Path, prefix: str = "site-") -> list[Path]:
    """Write each client's splits as `out`/site-0.npz, ...; numbered so that names sort as partitions do.

    Raises:
        DataError: the set is missing, or cannot be split as asked.
        ConfigError: a key of `cfg` is wrong.
    """
    federation = load_federation(cfg, seed, torch.float32)
    digits = len(str(federation.num_clients - 1))
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    for k in range(federation.num_clients):
        data, path = federation.client(k), out / f"{prefix}{k:0{digits}d}.npz"
        splits = {"train": data.train, "valid": data.valid, "test": data.test}
        np.savez(path, **{f"{n}_{f}": getattr(s, f).numpy() for n, s in splits.items() for f in "xy"})
        paths.append(path)
    return paths
