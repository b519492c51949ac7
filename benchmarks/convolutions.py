"""What a step on the FedAvg paper's CNN is made of, and how near the processor's peak each part comes.

One step on a batch of 20 images of 28 x 28 pixels. Each part is what oneDNN or torch takes for it alone,
channels last, which is the faster way, with what it reads out of the core's own cache, as in a step;
below them their sum, and a step of ours. CPU milliseconds of one thread, the least of several. The peak is
that of multiply-adds that never leave the registers (benchmarks/peak.c).

    python benchmarks/convolutions.py [--repeats 30]
"""

import argparse
import ctypes
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from fedpers.bench.engines import channels_last
from fedpers.bench.main import write
from fedpers.bench.work import Result
from fedpers.core.data import Data
from fedpers.core.rng import Stream
from fedpers.learning.local_training import minimise_from
from fedpers.learning.model import build_model
from fedpers.learning.optimizers import LocalConfig, init_optimizer

B, STEPS = 20, 10
CONVOLUTIONS = {"conv1": (1, 28, 32, 5), "conv2": (32, 14, 64, 5)}  # channels in, side, channels out, kernel
DENSE = {"dense": (3136, 512), "head": (512, 10)}
TASK: dict[str, Any] = {"input_shape": (1, 28, 28), "num_outputs": 10, "task": "classification"}
CORE = 1 << 20  # floats: four times what a core's own cache holds here
Part = tuple[float, Callable[[], Any]]  # multiply-adds, what to time


def parts() -> dict[str, Part]:
    """Each part of a step, in order."""
    found: dict[str, Part] = {}
    for name, (ins, side, outs, k) in CONVOLUTIONS.items():
        x, w = channels_last(torch.randn(B, ins, side, side)), channels_last(torch.randn(outs, ins, k, k))
        b, d = torch.randn(outs), channels_last(torch.randn(B, outs, side, side))
        work = B * _met(side, k) ** 2 * outs * ins
        found[f"{name}, forward"] = work, lambda x=x, w=w, b=b, k=k: F.conv2d(x, w, b, padding=k // 2)
        for what, mask in (("weights", [False, True, True]), ("inputs", [True, False, False])):
            if (name, what) != ("conv1", "inputs"):
                found[f"{name}, {what}"] = (
                    work,
                    lambda a=(d, x, w), o=outs, k=k, m=mask: _backward(*a, o, k, m),
                )
        found[f"{name}, ReLU and pooling, both ways"] = 0, lambda d=d: _pool(d)
    for name, (ins, outs) in DENSE.items():
        x, w, d = torch.randn(B, ins), torch.randn(outs, ins), torch.randn(B, outs)
        found[f"{name}, both ways"] = 3 * B * ins * outs, lambda x=x, w=w, d=d: (x @ w.T, d.T @ x, d @ w)
    params = build_model("cnn_mcmahan", **TASK).init(0)
    weights, grads = list(params.values()), [torch.randn_like(p) for p in params.values()]
    found["plain SGD on the weights"] = 0, lambda: torch._foreach_add_(weights, grads, alpha=-0.01)
    return found


def _met(side: int, k: int) -> int:
    """How often a row of k weights meets a row of pixels, without the padding, which oneDNN leaves out."""
    return sum(0 <= i + j - k // 2 < side for i in range(side) for j in range(k))


def _backward(d: torch.Tensor, x: torch.Tensor, w: torch.Tensor, outs: int, k: int, mask: list[bool]) -> Any:
    pad = [k // 2, k // 2]
    return torch.ops.aten.convolution_backward(d, x, w, [outs], [1, 1], pad, [1, 1], False, [0, 0], 1, mask)


def _pool(z: torch.Tensor) -> Any:
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        out = F.max_pool2d(F.relu(z), 2)
        return torch.autograd.grad(out, z, out)


def least(f: Callable[[], Any], repeats: int) -> float:
    """CPU seconds of the fastest call, each after other work has gone through the core's cache."""
    seconds, other = [], torch.zeros(CORE)
    for _ in range(repeats):
        other += 1
        began = time.process_time()
        f()
        seconds.append(time.process_time() - began)
    return min(seconds)


def ours(repeats: int) -> float:
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


def main() -> None:
    """Measure, write convolutions.json and the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--out", default=str(Path(__file__).parent / "results"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    peak = multiply_adds()
    with torch.no_grad():
        rows: list[Result] = []
        for name, (work, run) in parts().items():
            rows.append(_row(name, least(run, args.repeats), work, peak))
        total = sum(r["seconds"] for r in rows)
        every = sum(work for work, _ in parts().values())
        rows += [
            _row("all parts", total, every, peak),
            _row("a step of ours", ours(args.repeats), every, peak),
        ]
    write(rows, "convolutions", Path(args.out))


def _row(name: str, seconds: float, work: float, peak: float) -> Result:
    rate = 2 * work / seconds
    found = {"part": name, "seconds": seconds, "gflops": rate / 1e9 if work else None, "peak": peak / 1e9}
    return found | {"share": rate / peak if work else None}


if __name__ == "__main__":
    main()
