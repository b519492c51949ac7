"""The work that benchmarks measure: the same for our runners and for every peer.

A round is C clients of M, each n samples of random normal inputs, E epochs of SGD with batches of
B, then the average. `python -m fedpers.bench.work ENGINE JSON` runs one engine and prints JSON.
"""

import os
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

LR = 0.05  # rate of the local steps


@dataclass(frozen=True)
class Work:
    """One setting."""

    model: str = "lr"  # a name of MODELS below
    M: int = 1000
    C: int = 100
    n: int = 200
    B: int = 20
    E: int = 1
    rounds: int = 8
    workers: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input."""
        return (3, 32, 32) if self.model == "lenet" else (1, 28, 28)

    @property
    def flops(self) -> float:
        """Floating point operations of a round: forwards, and backwards without the first input."""
        whole, first = FLOPS[self.model]
        return 2.0 * (3 * whole - first) * self.C * self.n * self.E


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "lr": ("logistic", {}),
    "mlp": ("mlp", {"hidden": [200]}),
    "lenet": ("lenet", {"padding": 0}),
    "cnn": ("cnn_mcmahan", {}),
}
FLOPS = {  # multiply-adds a sample: all, and the first layer's
    "lr": (7840, 7840),
    "mlp": (784 * 200 + 2000, 784 * 200),
    "lenet": (784 * 6 * 75 + 100 * 16 * 150 + 48000 + 10080 + 840, 784 * 6 * 75),
    "cnn": (784 * 32 * 25 + 196 * 64 * 800 + 3136 * 512 + 5120, 784 * 32 * 25),
}


def make_model(work: Work) -> Any:
    """Our model."""
    from fedpers.learning.model import build_model

    name, options = MODELS[work.model]
    return build_model(name, input_shape=work.shape, num_outputs=10, task="classification", **options)


def arrays(work: Work) -> tuple[np.ndarray, np.ndarray]:
    """Inputs [M, n, ...] and labels [M, n], mapped from a file that is made once."""
    size = "x".join(map(str, (work.M, work.n, *work.shape)))
    folder = Path(os.environ.get("FEDPERS_BENCH", tempfile.gettempdir())) / "fedpers-bench"
    folder.mkdir(parents=True, exist_ok=True)
    x_path, y_path = folder / f"x-{size}.npy", folder / f"y-{size}.npy"
    if not y_path.exists():
        rng = np.random.default_rng(1)
        part = x_path.with_suffix(".part.npy")
        np.save(part, rng.standard_normal((work.M, work.n, *work.shape), dtype=np.float32))
        part.rename(x_path)
        np.save(y_path, rng.integers(0, 10, (work.M, work.n)))
    return np.load(x_path, mmap_mode="c"), np.load(y_path)


def federation(work: Work) -> Any:
    """The clients; their test data are the first tenth of the training data."""
    import torch

    from fedpers.core.data import ClientData, Data, Federation

    x, y = (torch.from_numpy(a) for a in arrays(work))
    ones, few = torch.ones(work.n), work.n // 10
    cut = lambda a, b, m: Data(a[:m], b[:m], ones[:m])  # noqa: E731
    parts = [ClientData(cut(a, b, work.n), cut(a, b, 0), cut(a, b, few)) for a, b in zip(x, y, strict=True)]
    return Federation(
        "bench",
        work.M,
        work.shape,
        10,
        "classification",
        parts.__getitem__,
        np.full(work.M, work.n),
        np.full(work.M, few),
        np.zeros((work.M, 10)),
    )


class Clock:
    """Times rounds: wall seconds, and CPU seconds of this process alone."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.cpu: list[float] = []
        self.start()

    def start(self) -> None:
        """Forget what was before; a round begins."""
        self.seconds.clear()
        self.cpu.clear()
        self._began, self._cpu = time.perf_counter(), time.process_time()

    def done(self) -> None:
        """A round is over."""
        now, cpu = time.perf_counter(), time.process_time()
        self.seconds.append(now - self._began)
        self.cpu.append(cpu - self._cpu)
        self._began, self._cpu = now, cpu

    def result(self) -> dict[str, Any]:
        """What was measured."""
        return {"seconds": self.seconds, "cpu": self.cpu}


def versions() -> dict[str, str]:
    """Of the packages that matter, where they are installed in this process's environment."""
    found = {}
    for name in ("torch", "flwr", "ray", "pfl", "fedjax", "jax", "numpy"):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


SETTING = "FEDPERS_BENCH_WORK"  # the work, for Ray's actors


def as_module(model: Any) -> Any:
    """Our model as an nn.Module with the same arithmetic, for peers that want one."""
    import torch
    from torch import nn

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, value in model.init(0).items():
                self.register_parameter(name.replace(".", "_"), nn.Parameter(value.clone()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            own = self._parameters
            return model({k: own[k.replace(".", "_")] for k in names}, x)

    names = list(model.init(0))
    return Module()
