"""The work that benchmarks measure: the same for our runners and for every peer.

A round is C clients of M, each n samples of random normal inputs, E epochs of SGD with batches of
B, then the average. `python -m fedpers.benchwork ENGINE JSON` runs one engine and prints JSON.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

LR = 0.05                                     # rate of the local steps


@dataclass(frozen=True)
class Work:
    """One setting."""

    model: str = "lr"                         # a name of MODELS below
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
FLOPS = {                                     # multiply-adds a sample: all, and the first layer's
    "lr": (7840, 7840),
    "mlp": (784 * 200 + 2000, 784 * 200),
    "lenet": (784 * 6 * 75 + 100 * 16 * 150 + 48000 + 10080 + 840, 784 * 6 * 75),
    "cnn": (784 * 32 * 25 + 196 * 64 * 800 + 3136 * 512 + 5120, 784 * 32 * 25),
}


def make_model(work: Work) -> Any:
    """Our model."""
    from fedpers.models import build_model

    name, options = MODELS[work.model]
    return build_model(
        name, input_shape=work.shape, num_outputs=10, task="classification", **options
    )


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

    from fedpers.data import ClientData, Data, Federation

    x, y = (torch.from_numpy(a) for a in arrays(work))
    ones, few = torch.ones(work.n), work.n // 10
    cut = lambda a, b, m: Data(a[:m], b[:m], ones[:m])  # noqa: E731
    parts = [
        ClientData(cut(a, b, work.n), cut(a, b, 0), cut(a, b, few))
        for a, b in zip(x, y, strict=True)
    ]
    return Federation(
        "bench", work.M, work.shape, 10, "classification", parts.__getitem__,
        np.full(work.M, work.n), np.full(work.M, few), np.zeros((work.M, 10)),
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


def ours(work: Work, runner: str) -> dict[str, Any]:
    """FedAvg through our Strategy, the clients in this process and its workers."""
    from fedpers.clients.fedavg import FedAvgClient, FedAvgConfig
    from fedpers.cohort import Cohort
    from fedpers.grid import CohortGrid
    from fedpers.local import LocalConfig
    from fedpers.plan import Observer, Plan
    from fedpers.runners import RunnerConfig
    from fedpers.store import MemoryStore
    from fedpers.strategies.fedavg import FedAvg

    class Timed(FedAvg):
        def configure_evaluate(self, *args: Any) -> Any:
            return []

    class Watch(Observer):
        def on_round(self, t: int, log: Any) -> None:
            clock.done()

    config = FedAvgConfig(local=LocalConfig(lr=LR, epochs=work.E, batch_size=work.B))
    model = make_model(work)
    strategy = Timed(config, model, Plan(clients_per_round=work.C, eval_every=0))
    how = RunnerConfig(runner, workers=work.workers)            # type: ignore[arg-type]
    client = FedAvgClient(config, model)
    cohort = Cohort(client, federation(work), MemoryStore(), strategy.plan, how)
    grid = CohortGrid(cohort)
    cohort.start()
    clock = Clock()
    strategy.start(grid, num_rounds=work.rounds, observer=Watch())
    cohort.close()
    return clock.result()


def tight(work: Work) -> dict[str, Any]:
    """The best plain loop: one model, autograd.grad, foreach updates, channels last."""
    import torch

    from fedpers.rng import Stream

    model, clock = make_model(work), Clock()
    x, y = (torch.from_numpy(a) for a in arrays(work))
    last = torch.channels_last
    state = model.init(0)
    rng = np.random.default_rng(0)
    form = {k: last if v.dim() == 4 else torch.contiguous_format for k, v in state.items()}
    own = {k: v.clone(memory_format=form[k]).requires_grad_() for k, v in state.items()}
    weights = list(own.values())
    conv = any(v.dim() == 4 for v in weights)
    for t in range(work.rounds):
        total = [torch.zeros_like(w) for w in weights]
        for k in rng.choice(work.M, work.C, replace=False):
            with torch.no_grad():
                torch._foreach_copy_(weights, list(state.values()))
            for e in range(work.E):
                i = Stream(0, t, int(k), e).schedule(work.n, work.B, 1, 0)[0].reshape(-1)
                xe, ye = x[k][i], y[k][i]
                xe = xe.contiguous(memory_format=last) if conv else xe
                for s in range(0, work.n, work.B):
                    out = model(own, xe[s : s + work.B])
                    value = torch.nn.functional.cross_entropy(out, ye[s : s + work.B])
                    g = torch.autograd.grad(value, weights)
                    with torch.no_grad():
                        torch._foreach_add_(weights, g, alpha=-LR)
            with torch.no_grad():
                torch._foreach_add_(total, weights, alpha=1 / work.C)
        state = {k: v.detach() for k, v in zip(own, total, strict=True)}
        clock.done()
    return clock.result()


def floor(work: Work) -> dict[str, Any]:
    """What this machine's arithmetic can do on one thread, GFLOP/s."""
    import torch

    def rate(flops: float, run: Callable[[], Any]) -> float:
        run()
        best = float("inf")
        for _ in range(7):
            began = time.process_time()
            run()
            best = min(best, time.process_time() - began)
        return flops / best / 1e9

    a = torch.randn(1024, 1024)
    x = torch.randn(20, 32, 14, 14).contiguous(memory_format=torch.channels_last)
    w = torch.randn(64, 32, 5, 5).contiguous(memory_format=torch.channels_last)
    conv = lambda: torch.nn.functional.conv2d(x, w, padding=2)  # noqa: E731
    with torch.no_grad():
        return {"seconds": [], "cpu": [], "sgemm": rate(2 * 1024**3, lambda: a @ a),
                "conv": rate(2.0 * 20 * 196 * 64 * 800, conv)}


def versions() -> dict[str, str]:
    """Of the packages that matter, where they are installed in this process's environment."""
    found = {}
    for name in ("torch", "flwr", "ray", "pfl", "fedjax", "jax", "numpy"):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


OURS = {"auto": "auto", "loop": "loop", "stack": "stack"}


def main(argv: list[str]) -> int:
    """Run one engine on one work and print what it took."""
    import torch

    torch.set_num_threads(1)
    engine, work = argv[0], Work(**json.loads(argv[1]))
    if engine in OURS:
        found = ours(work, OURS[engine])
    elif engine in ("tight", "floor"):
        found = {"tight": tight, "floor": floor}[engine](work)
    else:
        from fedpers import benchpeers

        found = getattr(benchpeers, engine.replace("-", "_"))(work)
    found |= {"engine": engine, "work": asdict(work), "versions": versions()}
    if os.environ.get("RANK", "0") == "0":             # of several processes the first one tells
        print("RESULT " + json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
