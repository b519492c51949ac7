"""The work that benchmarks measure: the same for our runners and for every peer.

A round is C clients of M, each with n samples of random normal inputs: E epochs of SGD with batches
of B, then the average. Nothing here imports the engines, so that a peer's interpreter needs none.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedpers.core.data import ClientData, Data, Federation
from fedpers.learning.model import Model, build_model

LR = 0.05  # step size of local SGD
NO_KERNELS = "no-kernels"  # the engine that is `auto` without the kernels in C
SETTING = "FEDPERS_BENCH_WORK"  # the work, for Ray's actors
Result = dict[str, Any]


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
        return (3, 32, 32) if self.model in ("lenet", "resnet18") else (1, 28, 28)

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
    "resnet18": ("resnet18_gn", {}),
}
PROFILED = {MODELS[name][0]: name for name in ("lr", "mlp")}  # models of `methods --profile`, and settings
FLOPS = {  # multiply-adds a sample: all, and the first layer's
    "lr": (7840, 7840),
    "mlp": (784 * 200 + 2000, 784 * 200),
    "lenet": (784 * 6 * 75 + 100 * 16 * 150 + 48000 + 10080 + 840, 784 * 6 * 75),
    "cnn": (784 * 32 * 25 + 196 * 64 * 800 + 3136 * 512 + 5120, 784 * 32 * 25),
}


def make_model(work: Work) -> Model:
    """Our model."""
    name, options = MODELS[work.model]
    return build_model(name, input_shape=work.shape, num_outputs=10, task="classification", **options)


class AsModule(nn.Module):
    """Our model as an nn.Module with the same arithmetic, for peers that want one."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.function, self.names = model, list(model.init(0))
        for name, value in model.init(0).items():
            self.register_parameter(name.replace(".", "_"), nn.Parameter(value.clone()))

    def forward(self, x: Tensor) -> Tensor:
        """The model's outputs for a batch [n, ...]."""
        return self.function(dict(zip(self.names, self.parameters(), strict=True)), x)


def tensors(work: Work) -> tuple[Tensor, Tensor]:
    """`arrays` as tensors."""
    x, y = arrays(work)
    return torch.from_numpy(x), torch.from_numpy(y)


def arrays(work: Work) -> tuple[np.ndarray, np.ndarray]:
    """Inputs [M, n, ...] and classes [M, n], mapped from a file that is made once."""
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


def federation(x: Tensor, y: Tensor, test: slice, number: int | None = None) -> Federation:
    """A federation of equal clients; each trains on all its samples, and tests on some of them.

    Args:
        x, y: inputs [P, n, ...] and classes [P, n] of 10.
        test: which of a client's samples are its test samples.
        number: how many clients; client k has row k mod P. None: P.
    """
    ones, none = torch.ones(x.shape[1], device=x.device), slice(0)
    parts = [
        ClientData(*(Data(a[s], b[s], ones[s]) for s in (slice(None), none, test)))
        for a, b in zip(x, y, strict=True)
    ]
    number = number or len(parts)
    return Federation(
        name="bench",
        num_clients=number,
        input_shape=tuple(x.shape[2:]),
        num_classes=10,
        task="classification",
        client=lambda k: parts[k % len(parts)],
        num_train=np.full(number, x.shape[1]),
        num_test=np.full(number, len(parts[0].test)),
        label_counts=np.broadcast_to(np.zeros(10), (number, 10)),
    )


class Clock:
    """Times rounds: wall seconds, and CPU seconds of this process alone."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Forget what was before; a round begins."""
        self.seconds: list[float] = []
        self.cpu: list[float] = []
        self.resume()

    def resume(self) -> None:
        """A round begins."""
        self._began = time.perf_counter(), time.process_time()

    def done(self) -> None:
        """A round is over."""
        now = time.perf_counter(), time.process_time()
        self.seconds.append(now[0] - self._began[0])
        self.cpu.append(now[1] - self._began[1])
        self._began = now

    def result(self) -> Result:
        """What was measured."""
        return {"seconds": self.seconds, "cpu": self.cpu}


def take_turns(ways: Mapping[str, Callable[[], float | None]], count: int) -> dict[str, Result]:
    """Median wall and CPU seconds of each way: `count` runs in turns, after two that are not counted.

    Args:
        ways: what does the work; it may return the CPU seconds that another process took for it.
    """
    clocks = {way: Clock() for way in ways}
    for _ in range(count + 2):
        for way, run in ways.items():
            clock = clocks[way]
            clock.resume()
            others = run()
            clock.done()
            clock.cpu[-1] += others or 0.0
    return {
        way: {key: statistics.median(values[2:]) for key, values in clock.result().items()}
        for way, clock in clocks.items()
    }


def versions() -> dict[str, str]:
    """Of the packages that matter, where they are installed in this process's environment."""
    found = {}
    for name in ("torch", "flwr", "ray", "pfl", "fedjax", "jax", "numpy"):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
