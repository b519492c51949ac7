"""What a step on the FedAvg paper's CNN is made of, by torch alone and with our kernels.

One step on a batch of 20 images of 28 x 28 pixels. Each layer forward and back: convolutions with their ReLU
and maxima, channels last, which is the faster way, with what they read out of the core's own cache, as in a
step; below them their sum, and a whole step of local training. CPU milliseconds of one thread, the least of
several. The peak is that of multiply-adds that never leave the registers (benchmarks/peak.c).

    python benchmarks/convolutions.py [--repeats 60]
"""

import argparse
import ctypes
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from fedpers.bench.engines import channels_last
from fedpers.bench.main import write
from fedpers.bench.work import Result
from fedpers.core.data import Data
from fedpers.core.memory import keep_freed
from fedpers.core.params import Params
from fedpers.core.rng import Stream
from fedpers.learning.kernels.dispatch import autograd_only
from fedpers.learning.kernels.pooled import differentiated_once
from fedpers.learning.layers import Conv, Dense, Layer, MaxPool, Pooled
from fedpers.learning.local_training import minimise_from
from fedpers.learning.model import build_model
from fedpers.learning.optimizers import LocalConfig, init_optimizer
from fedpers.learning.pieces import layout

B, STEPS = 20, 10
CONVOLUTIONS = {"conv1": (1, 28, 32, 5), "conv2": (32, 14, 64, 5)}  # channels in, side, channels out, kernel
DENSE = {"dense": (3136, 512), "head": (512, 10)}
TASK: dict[str, Any] = {"input_shape": (1, 28, 28), "num_outputs": 10, "task": "classification"}
CORE = 1 << 20  # floats: four times what a core's own cache holds here
Part = tuple[str, float, Callable[[], Any]]  # name, multiply-adds, what to time


def parts() -> Iterator[Part]:
    """Each part of a step in order: name, multiply-adds, what to time, in the way that is open then."""
    for name, (ins, side, outs, k) in CONVOLUTIONS.items():
        layer = Pooled(Conv(outs, k, k // 2), MaxPool(2, 2), relu=True)
        x = channels_last(torch.randn(B, ins, side, side)).requires_grad_(ins > 1)  # images need no gradient
        w = {"weight": layout(torch.randn(outs, ins, k, k)), "bias": torch.randn(outs)}
        work = B * _met(side, k) ** 2 * outs * ins
        yield from both_ways(name, (1 + (ins > 1)) * work, work, layer, x, w)
    for name, (ins, outs) in DENSE.items():
        x = torch.randn(B, ins).requires_grad_()
        w = {"weight": torch.randn(outs, ins), "bias": torch.randn(outs)}
        work = B * ins * outs
        yield from both_ways(name, 2 * work, work, Dense(outs), x, w)
    params = build_model("cnn_mcmahan", **TASK).init(0)
    weights, grads = list(params.values()), [torch.randn_like(p) for p in params.values()]
    yield "plain SGD on the weights", 0, lambda: torch._foreach_add_(weights, grads, alpha=-0.01)


def both_ways(
    name: str, back: float, forward: float, layer: Layer, x: torch.Tensor, w: Params
) -> Iterator[Part]:
    """A layer forward, and back to its parameters and, if they need it, its inputs."""
    params = {f"{name}.{key}": value.requires_grad_() for key, value in w.items()}

    def run() -> torch.Tensor:
        with torch.enable_grad():
            return layer(params, name, x)

    yield f"{name}, forward", forward, run
    y = run()
    d = torch.randn_like(y)
    leaves = [t for t in (x, *params.values()) if t.requires_grad]
    yield f"{name}, back", back, lambda: torch.autograd.grad(y, leaves, d, retain_graph=True)


def _met(side: int, k: int) -> int:
    """How often a row of k weights meets a row of pixels, without the padding, which oneDNN leaves out."""
    return sum(0 <= i + j - k // 2 < side for i in range(side) for j in range(k))


def least(f: Callable[[], Any], repeats: int) -> float:
    """CPU seconds of the fastest call, each after other work has gone through the core's cache."""
    seconds, other = [], torch.zeros(CORE)
    for _ in range(repeats):
        other += 1
        began = time.process_time()
        f()
        seconds.append(time.process_time() - began)
    return min(seconds)


def whole_step(repeats: int) -> float:
    """CPU seconds of a step of plain SGD on one client, as a run takes it."""
    model = build_model("cnn_mcmahan", **TASK)
    n = B * STEPS
    data, params = Data(torch.randn(n, 1, 28, 28), torch.randint(0, 10, (n,)), torch.ones(n)), model.init(0)
    local = LocalConfig(lr=0.01, epochs=1, batch_size=B)

    def train() -> Any:
        return minimise_from(model.loss, params, init_optimizer(params, local), data, Stream(0, 1, 0), local)

    return least(train, max(repeats // STEPS, 3)) / STEPS


def multiply_adds() -> float:
    """Floating-point operations a second of a loop of multiply-adds in registers."""
    source, rounds = Path(__file__).with_name("peak.c"), 1 << 20
    with tempfile.TemporaryDirectory() as folder:
        library = str(Path(folder) / "peak.so")
        command = ["cc", "-O3", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC"]
        subprocess.run([*command, str(source), "-o", library], check=True)
        peak = ctypes.CDLL(library)
        peak.multiply_adds.argtypes, peak.multiply_adds.restype = [ctypes.c_long], ctypes.c_double
        flops = peak.multiply_adds(rounds)
        return float(flops / least(lambda: peak.multiply_adds(rounds), 20))


def measured(kernels: bool, repeats: int) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of each part, of all and of a step, and their multiply-adds; by torch alone or with kernels."""
    seconds, work = {}, {}
    with torch.no_grad(), nullcontext() if kernels else autograd_only():
        with differentiated_once(kernels):
            for name, work[name], run in parts():
                seconds[name] = least(run, repeats)
        seconds |= {"all parts": sum(seconds.values()), "a step": whole_step(repeats)}
    return seconds, work | dict.fromkeys(("all parts", "a step"), sum(work.values()))


def main() -> None:
    """Measure, write convolutions.json and the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--out", default=str(Path(__file__).parent / "results"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed()  # as a run does
    peak = multiply_adds()
    by_torch, (ours, work) = measured(False, args.repeats)[0], measured(True, args.repeats)
    rows: list[Result] = [
        {
            "part": name,
            "torch": by_torch[name],
            "seconds": seconds,
            "times": by_torch[name] / seconds,
            "gflops": 2 * work[name] / seconds / 1e9 or None,
            "peak": peak / 1e9,
        }
        for name, seconds in ours.items()
    ]
    write(rows, "convolutions", Path(args.out))


if __name__ == "__main__":
    main()
