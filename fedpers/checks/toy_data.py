"""Small federations of Gaussian classes or a linear model, for tests and examples."""

import numpy as np
import torch
from torch import Tensor

from fedpers.core.data import ClientData, Data, Federation


def toy_federation(
    num_clients: int = 6,
    sizes: tuple[int, ...] = (12, 9, 15),
    *,
    dim: int = 5,
    classes: int = 3,
    task: str = "classification",
    groups: int = 2,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Federation:
    """Clients in `groups` groups whose labels follow different linear rules.

    Training sizes go round through `sizes`, so clients are ragged; validation has 4 samples a
    client, test 6. Eight samples of the first group's rule are public.
    """
    rng = np.random.default_rng([seed, 77])
    outputs = classes if task == "classification" else 1
    rules = rng.normal(size=(groups, dim, outputs))
    parts: list[ClientData] = []
    counts: list[np.ndarray] = []
    for k in range(num_clients):
        n = sizes[k % len(sizes)]
        x = rng.normal(size=(n + 10, dim))
        y = x @ rules[k % groups] + 0.1 * rng.normal(size=(n + 10, outputs))
        target = _targets(y, task)
        cuts = (slice(0, n), slice(n, n + 4), slice(n + 4, n + 10))
        parts.append(ClientData(*(_data(x[c], target[c], dtype) for c in cuts)))
        labels = target[:n] if task == "classification" else np.zeros(0, dtype=np.int64)
        counts.append(np.bincount(labels, minlength=classes if len(labels) else 0))
    x = rng.normal(size=(8, dim))
    public = _data(x, _targets(x @ rules[0], task), dtype)
    sizes_of = np.array([sizes[k % len(sizes)] for k in range(num_clients)])
    return Federation(
        "toy",
        num_clients,
        (dim,),
        outputs,
        task,
        parts.__getitem__,
        sizes_of,
        np.full(num_clients, 6),
        np.array(counts),
        {"group": np.arange(num_clients) % groups},
        public=public,
    )


def _targets(y: np.ndarray, task: str) -> np.ndarray:
    return {"classification": y.argmax(1), "binary": (y[:, 0] > 0).astype(np.int64)}.get(task, y)


def _data(x: np.ndarray, y: np.ndarray, dtype: torch.dtype) -> Data:
    target: Tensor = torch.from_numpy(np.ascontiguousarray(y))
    target = target if target.dtype == torch.int64 else target.to(dtype)
    return Data(torch.from_numpy(x).to(dtype), target, torch.ones(len(x), dtype=dtype))
