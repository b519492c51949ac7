"""pfl-research's CIFAR-10 benchmark on one GPU, every client of a round in one stack.

1,000 users of 50 images, 50 users a round, 5 local steps of batch 10, step size 0.1, 1,500 rounds, their
simple_cnn (two 3x3 convolutions of 32 and 64 channels, pooling, 128 units). Left out: their two dropouts.

Ways to compute are tried for some rounds first, and the fastest exact one runs all rounds. Only rounds are
timed; accuracy on the test images is measured every 100 rounds.
"""

import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpers.bench.engines import play
from fedpers.bench.work import Clock, Result, federation
from fedpers.clients.fedavg import FedAvgClient, FedAvgConfig
from fedpers.core.errors import FedpersError
from fedpers.core.plan import Plan
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.runner import RunnerConfig
from fedpers.learning.layers import Conv, Dense, Flatten, MaxPool, Relu, stack
from fedpers.learning.model import Model
from fedpers.learning.optimizers import LocalConfig
from fedpers.strategies.fedavg import FedAvg

USERS, IMAGES, COHORT, PROBE = 1000, 50, 50, 12
WAYS = {
    "float32": RunnerConfig("stack", COHORT),
    "TF32": RunnerConfig("stack", COHORT, precision="tf32"),
    "TF32, grouped": RunnerConfig("stack", COHORT, convolution="grouped", precision="tf32"),
    "bf16": RunnerConfig("stack", COHORT, precision="bf16"),
}
EXACT = ("float32", "TF32", "TF32, grouped")  # what may run all rounds


@dataclass
class Images:
    """CIFAR-10 on the device."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    source: str


def measure(folder: str, rounds: int) -> list[Result]:
    """Run the benchmark, on a CPU if there is no GPU; prints as it goes and returns its row.

    Args:
        folder: where cifar-10-batches-py is; "": random images.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images = load(folder, device)
    name = torch.cuda.get_device_name() if device == "cuda" else "the CPU"
    print(f"{images.source} on {name}, torch {torch.__version__}", flush=True)
    tried = {way: attempt(way, images, device) for way in WAYS}
    speeds = {way: t for way, t in tried.items() if t is not None and way in EXACT}
    if not speeds:
        raise SystemExit("no way to compute worked")
    best = min(speeds, key=lambda w: speeds[w])
    print(f"all {rounds} rounds with {best}", flush=True)
    seconds, accuracy = run(WAYS[best], images, device, rounds, say=True)
    row: Result = {"benchmark": "pfl-cifar10", "device": name, "way": best, "rounds": rounds}
    row |= {"seconds": sum(seconds), "median_round": statistics.median(seconds), "first_round": seconds[0]}
    row |= {"accuracy": accuracy, "data": images.source, "probed": {w: t for w, t in tried.items() if t}}
    row["peak_gpu_mb"] = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else None
    middle = row["median_round"] * 1e3
    print(f"{row['seconds']:.1f} s in all, {middle:.2f} ms a round, accuracy {accuracy:.3f}")
    return [row]


def load(folder: str, device: str) -> Images:
    """The images, standardised; random ones if there is no folder."""
    if folder:
        from fedpers.datasets.cifar import load as read
        from fedpers.datasets.config import DataConfig

        raw = read(DataConfig(name="cifar10", root=folder), np.random.default_rng(0))
        x, y, test_x, test_y = raw.x, raw.y, raw.test_x, raw.test_y
        source = f"CIFAR-10, {len(x)} images"
    else:
        rng, source = np.random.default_rng(0), "random images"
        x = rng.integers(0, 256, (USERS * IMAGES, 3, 32, 32), dtype=np.uint8)
        y, test_x, test_y = rng.integers(0, 10, len(x)), x[:1000], rng.integers(0, 10, 1000)

    def scaled(a: Any) -> Tensor:
        return (torch.from_numpy(np.array(a)).to(device).float() / 255 - 0.47) / 0.25

    labels = [torch.from_numpy(np.array(v)).long().to(device) for v in (y, test_y)]
    return Images(scaled(x), labels[0], scaled(test_x), labels[1], source)


def simple_cnn() -> Model:
    """Their model: 1,626,442 parameters."""
    body = (Conv(32, 3, 0), Relu(), Conv(64, 3, 0), Relu(), MaxPool(2, 2), Flatten(), Dense(128))
    network = stack((3, 32, 32), *body, Relu())
    return Model("simple_cnn", "classification", network.num_features, 10, network)


def attempt(way: str, images: Images, device: str) -> float | None:
    """Median seconds of a round; None if this machine cannot compute it that way."""
    try:
        seconds, _ = run(WAYS[way], images, device, PROBE)
    except Exception as error:  # the ways are tried to see which of them work
        print(f"{way}: {type(error).__name__}: {str(error)[:200]}", flush=True)
        return None
    middle = statistics.median(seconds[len(seconds) // 2 :])
    print(f"{way}: {middle * 1e3:.2f} ms a round", flush=True)
    return middle


def run(
    how: RunnerConfig, images: Images, device: str, rounds: int, say: bool = False
) -> tuple[list[float], float]:
    """(seconds of each round, accuracy at the end). Where there are few images, some have two users."""

    def accuracy() -> float:
        with torch.no_grad():
            out = [model(strategy.state.params, x) for x in images.test_x.split(2000)]
        return float((torch.cat(out).argmax(1) == images.test_y).float().mean())

    def done(t: int, log: Any) -> None:
        if device == "cuda":
            torch.cuda.synchronize()
        clock.done()
        if say and t % 100 == 0:
            print(f"round {t}: {sum(clock.seconds):.1f} s, {accuracy():.3f}", flush=True)
            clock.resume()

    drawn = np.random.default_rng(1).permutation(len(images.y))
    order = torch.from_numpy(np.resize(drawn, (USERS, IMAGES))).to(images.y.device)
    fed = federation(images.x[order], images.y[order], test=slice(1))
    model = simple_cnn()
    config = FedAvgConfig(local=LocalConfig(lr=0.1, epochs=1, batch_size=10))
    strategy = FedAvg(config, model, Plan(clients_per_round=COHORT, eval_every=0, device=device))
    clock = Clock()
    cohort = play(strategy, FedAvgClient(config, model), fed, RamStore(), how, rounds, done)
    if cohort.runner.looped:
        raise FedpersError("the stack failed and was looped")
    return clock.seconds, accuracy()
