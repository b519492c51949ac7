"""Rounds of 100 clients on one GPU: networks beside the best plain loop there, and every method.

Without a GPU it runs on the CPU, so that the suite can be tried.
"""

import argparse
import gc
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from fedpers.bench.engines import play, tight
from fedpers.bench.work import LR, Clock, Result, Work, federation, make_model, tensors
from fedpers.config import compose
from fedpers.config.registry import METHODS, method
from fedpers.core.errors import FedpersError
from fedpers.core.plan import Plan
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.processor import arithmetic
from fedpers.engines.runner import RunnerConfig
from fedpers.learning.training_round import trainings

NETWORKS = ("lr", "mlp", "lenet", "cnn", "resnet18")  # of a round of FedAvg
OF_METHODS = defaultdict(lambda: "mlp", fedbn="resnet18")  # FedBN keeps layers that an MLP has not
WAYS = (("stack", "float32"), ("tight", "float32"), ("stack", "tf32"), ("tight", "tf32"))
WARM = {"stack": 3, "tight": 1}  # rounds that are not counted: steps are recorded, libraries are loaded
COUNTED = {"stack": 10, "tight": 3}


def cuda(args: argparse.Namespace) -> list[Result]:
    """A row for each network and way, then one for each method."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    machine = torch.cuda.get_device_name() if device == "cuda" else "the CPU"
    names = args.methods.split(",") if args.methods else list(METHODS)
    cases: list[tuple[str, str, str, str]] = []
    for network in args.models.split(",") if args.models else NETWORKS:
        cases += [(network, "fedavg", *way) for way in WAYS if device == "cuda" or way[1] == "float32"]
    cases += [(OF_METHODS[name], name, "stack", "float32") for name in names if name != "fedavg"]
    rows: list[Result] = []
    for network, name, way, precision in cases:
        counted = args.rounds if args.rounds and way == "stack" else COUNTED[way]
        work = Work(network, M=100, C=args.clients or 100, rounds=WARM[way] + counted)
        row: Result = {"device": machine, "model": network, "method": name, "way": way}
        row |= {"precision": precision, "C": work.C}
        rows.append(row | measure(name, way, precision, work, device))
        print(rows[-1], flush=True)
    for row in rows:
        alike = [r for r in rows if all(r[key] == row[key] for key in ("model", "method", "precision"))]
        stack = alike[0]["seconds"]
        row["times"] = row["seconds"] / stack if row["seconds"] and stack else None
    return rows


def measure(name: str, way: str, precision: str, work: Work, device: str) -> Result:
    """Median seconds of a round and the largest memory that torch took of the device, MB (None: a CPU)."""
    on_gpu = device == "cuda"
    if on_gpu:
        gc.collect()  # the run before
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    sync: Callable[[], None] = torch.cuda.synchronize if on_gpu else lambda: None
    how = RunnerConfig("stack", precision=precision)  # type: ignore[arg-type]
    try:
        if way == "tight":
            with arithmetic(precision, "grouped", device):
                seconds = tight(work, device, sync)["seconds"]
        else:
            seconds = rounds(name, how, work, device, sync)
    except (FedpersError, RuntimeError) as error:  # out of memory is a RuntimeError of torch's
        print(f"{name}, {work.model}, {way}: {str(error)[:300]}", file=sys.stderr)
        return {"seconds": None, "peak_gpu_mb": None}
    peak = torch.cuda.max_memory_allocated() / 2**20 if on_gpu else None
    return {"seconds": statistics.median(seconds[WARM[way] :]), "peak_gpu_mb": peak}


def rounds(name: str, how: RunnerConfig, work: Work, device: str, sync: Callable[[], None]) -> list[float]:
    """Seconds of each round of a method, all its clients in one process."""
    halves, config = method(name), compose.load([f"method={name}"]).method
    same: dict[str, Any] = {"lr": LR, "epochs": work.E, "steps": 0, "batch_size": work.B}
    config = replace(config, **{key: replace(cfg, **same) for key, cfg in trainings(config).items()})
    number = work.C if halves.strategy_class().takes_all else work.M
    network = make_model(work)
    plan = Plan(clients_per_round=min(work.C, number), eval_every=0, device=device)
    x, y = (t.to(device) for t in tensors(replace(work, M=number)))
    fed = federation(x, y, test=slice(work.n // 10))
    clock = Clock()

    def done(t: int, log: Any) -> None:
        sync()
        clock.done()

    strategy = halves.strategy_class()(config, network, plan)
    client = halves.client_class()(config, network)
    cohort = play(strategy, client, fed, RamStore(), how, work.rounds, done)
    if cohort.runner.looped:
        raise FedpersError("the stack failed and was looped")
    return clock.seconds
