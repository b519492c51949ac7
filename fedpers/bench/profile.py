"""Where a method's round goes, and how far it is above its own arithmetic: `fedpers bench methods --profile`.

The floor of a round is the passes that its clients must make, at the rate of a matrix product measured
between its rounds, so that what slows the machine slows both: gradients, losses of models that are only
looked at, steps of a head on features, each by the products it is made of; and the products of models with
models where a method's server mixes or compares each with each. What it leaves out is element by element:
activations, softmax, the optimiser's step, a mean, which a plain product does not have either; so the floor
is a yardstick, no bound.
"""

import argparse
import cProfile
import pstats
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from fedpers.bench.engines import play
from fedpers.bench.work import MODELS, PROFILED, Clock, Result, Work, federation, make_model, tensors
from fedpers.config import compose
from fedpers.config.registry import METHODS, method
from fedpers.core.data import Federation
from fedpers.core.errors import FedpersError
from fedpers.core.params import size
from fedpers.core.plan import Plan
from fedpers.engines.memory.row_store import RowStore
from fedpers.engines.runner import RunnerConfig
from fedpers.flower.observer import RoundLog
from fedpers.learning.flops import flops_of

ROUNDS = {"logistic": 40, "mlp": 10}  # profiled, three times as many timed: what takes no second is noise
WARM = 40  # rounds before anything is measured: compiled code, sizes of stacks, first visits of clients
TURN = 6  # rounds: one profiled, then a product, two for the caches to forget these, three timed
SIDE = 512  # of the matrices of that product; larger ones, no faster, empty caches that rounds then miss
PARTS = ("kernel", "torch", "Python", "Flower", "storage")
COUNTS = ("gradients", "forwards", "head_steps", "pairs")  # what the floor is made of: samples, and models
IN_C = {  # functions whose time is the kernels', by their file
    "kernels/native.py": ("call",),
    "kernels/assess.py": ("_assess",),
    "core/seeds.py": ("_batches", "_integers", "_fractions"),
    "core/sums.py": (
        "look",
        "sums_each",
        "add_up",
        "mixtures",
        "combine_stacks",
        "stack_of",
        "distances",
        "distances_each",
        "class_sums",
    ),
}
Function = tuple[str, int, str]  # file, line, name: a function of pstats


def profile(args: argparse.Namespace, model: str) -> list[Result]:
    """A row for each method: of several passes over all methods the one of the median."""
    torch.set_num_threads(1)
    names = args.methods.split(",") if args.methods else list(METHODS)
    rows: dict[str, list[Result]] = {name: [] for name in names}
    for name in names * args.passes:
        rows[name].append(one(name, model, args.clients or 20, args.rounds or ROUNDS[model]))
        print(rows[name][-1], flush=True)
    return [middle(found) for found in rows.values()]


def middle(rows: Sequence[Result]) -> Result:
    """The row whose time above the floor is the median, the lower one of two."""
    return sorted(rows, key=lambda row: row["times"] or 0.0)[(len(rows) - 1) // 2]


def one(name: str, model: str, clients: int, rounds: int) -> Result:
    """The row of a method; its numbers are None if it cannot run here, and the reason is printed."""
    row: Result = {"method": name, "model": model, "clients": clients, "rounds": rounds}
    setting, halves = PROFILED[model], method(name)
    number = clients if halves.strategy_class().takes_all else 100
    work = Work(setting, M=number, C=clients)
    options = [f"model.{k}={v}" for k, v in MODELS[setting][1].items()]
    fed = federation(*tensors(work), test=slice(work.n // 10))
    try:
        config = compose.load([f"method={name}", f"model={model}", *options]).method
        if hasattr(config, "local"):
            config = replace(config, local=replace(config.local, batch_size=work.B))
        network, plan = make_model(work), Plan(clients_per_round=clients, eval_every=0)
        found = measure(
            halves.strategy_class()(config, network, plan),
            halves.client_class()(config, network),
            fed,
            rounds,
        )
    except FedpersError as error:
        print(f"{name}, {model}: {error}", file=sys.stderr)
        return row | dict.fromkeys(("cpu", "floor", "times", *PARTS))
    *samples, pairs = (found.pop(name) for name in COUNTS)
    rate = found.pop("rate")
    passes = flops_of(network, work.shape).all_passes(*samples)
    least = (passes + 2 * pairs * size(network.init(0))) / rate
    return row | found | {"floor": least, "times": found["cpu"] / least if least else None}


def measure(strategy: Any, client: Any, fed: Federation, rounds: int) -> Result:
    """CPU seconds and COUNTS of a round, FLOP/s of a product (medians all), and the shares of PARTS.

    Methods that draw how long a round is have long ones now and then: the median's cost is that of the
    median's length. Profiled and timed rounds take turns, so that what else the machine does hits both
    kinds; not the two rounds after a profiled one and a product, which are up to 20 and 6 % slower than
    others, nor the last one, in which some methods ask for their objective.
    """
    clock, profiler, products = Clock(), cProfile.Profile(time.process_time), Clock()
    samples, exchanges = [], []

    def done(t: int, log: RoundLog) -> None:
        profiler.disable()
        clock.done()
        gradients = log.gradient_evals
        exchanges.append(strategy.exchanges)
        samples.append((gradients, log.body_forwards - gradients, log.head_steps, log.pairs))
        if t > WARM and t % TURN == 1:  # rounds are counted from 1
            products.resume()
            _ = square @ square
            products.done()
        if WARM <= t < count - 1 and t % TURN == 0:
            profiler.enable()
        clock.resume()

    square, count = torch.randn(SIDE, SIDE), WARM + TURN * rounds + 1
    try:
        play(strategy, client, fed, RowStore(), RunnerConfig(), count, done)
    finally:
        profiler.disable()
    profiled, timed = ([i for i in range(WARM, count - 1) if i % TURN in which] for which in ([0], [3, 4, 5]))
    cpu = [clock.cpu[i] for i in timed]
    medians = map(statistics.median, zip(*(samples[i] for i in timed), strict=True))
    counts = dict(zip(COUNTS, medians, strict=True))
    asked = statistics.median(exchanges[i] for i in timed)
    found = {
        "cpu": statistics.median(cpu),
        "exchanges": asked,
        "rate": 2 * SIDE**3 / statistics.median(products.cpu),
    }
    seconds = unprofiled(clock.cpu, [sum(each) for each in samples], profiled, timed)
    return found | counts | shares(profiler, seconds)


def unprofiled(
    cpu: Sequence[float], did: Sequence[float], profiled: Sequence[int], timed: Sequence[int]
) -> float:
    """Seconds that the profiled rounds take without the profiler, by the timed ones: by samples, where there
    are any, since rounds may differ in length.
    """
    per = [sum(did[i] or 1 for i in which) for which in (profiled, timed)]
    return sum(cpu[i] for i in timed) * per[0] / per[1]


def shares(profiler: cProfile.Profile, seconds: float) -> dict[str, float]:
    """The share of each part in what took so many seconds while nobody profiled it.

    C functions took under the profiler what they always take, and `watching` a call; what is left of
    `seconds` is Python's, by the time that its functions took under the profiler.
    """
    in_c, in_python = dict.fromkeys(PARTS, 0.0), dict.fromkeys(PARTS, 0.0)
    cost = watching()
    for function, (_, count, own, _, _) in pstats.Stats(profiler).stats.items():  # type: ignore[attr-defined]
        part = part_of(function)
        where = in_c if function[0] == "~" or part == "kernel" else in_python
        where[part] += max(own - cost * count, 0.0)
    rest = max(seconds - sum(in_c.values()), 0.0) / (sum(in_python.values()) or 1.0)
    found = {part: in_c[part] + rest * in_python[part] for part in PARTS}
    return {part: found[part] / sum(found.values()) for part in PARTS}


def watching(count: int = 10_000) -> float:
    """Seconds that the profiler adds to a call of a C function."""
    profiler = cProfile.Profile(time.process_time)
    with profiler:
        for _ in range(count):
            len(PARTS)
    stats = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    return max(own for _, n, own, _, _ in stats.values() if n == count) / count  # type: ignore[no-any-return]


def part_of(function: Function) -> str:
    """The part that a function belongs to; C functions have no file."""
    file, _, name = function
    where: dict[str, Callable[[], bool]] = {
        "kernel": lambda: any(file.endswith(end) and name in names for end, names in IN_C.items()),
        "torch": lambda: "torch" in name if file == "~" else "/torch/" in file,
        "Flower": lambda: "/flwr/" in file or "fedpers/flower/" in file,
        "storage": lambda: "engines/memory/" in file,
    }
    return next((part for part, here in where.items() if here()), "Python")
