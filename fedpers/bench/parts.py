"""What the kernels in C, the worker channel and the row store buy, each beside the library way.

Ways of one case take turns in one process, so that what else the machine does hits all of them.
CPU seconds are those of all processes that take part.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from typing import Any

import torch

from fedpers.bench import channels, stores
from fedpers.bench.evaluation import evaluation_of
from fedpers.bench.work import LR, Work, federation, make_model, tensors
from fedpers.clients.fedavg import FedAvgClient, FedAvgConfig, Weights
from fedpers.clients.fedprox import FedProxClient, FedProxConfig
from fedpers.clients.fedprox import Weights as ProxWeights
from fedpers.core.plan import Plan
from fedpers.engines.cohort import Cohort
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.runner import RunnerConfig
from fedpers.flower.messages import Request
from fedpers.learning.kernels.dispatch import autograd_only
from fedpers.learning.optimizers import LocalConfig

Result = dict[str, Any]
Run = Callable[[], Any]  # does the work; returns the CPU seconds of other processes
Case = tuple[str, str, dict[str, Run]]  # part, case, ways; the first way is ours


def measure(passes: int) -> list[Result]:
    """All parts; a row for each way of each case."""
    torch.set_num_threads(1)
    with ExitStack() as stack:
        cases: Iterator[Case] = chain(_training(), _evaluation(), channels.cases(stack), stores.cases(stack))
        return [row for part, case, ways in cases for row in take_turns(part, case, ways, 3 * passes)]


def take_turns(part: str, case: str, ways: dict[str, Run], count: int) -> list[Result]:
    """Medians of `count` runs of each way, after two that are not counted; the first way is ours."""
    taken: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(count + 2):
        for way, run in ways.items():
            began, cpu = time.perf_counter(), time.process_time()
            others = run() or 0.0
            taken[way].append((time.perf_counter() - began, time.process_time() - cpu + others))
    rows: list[Result] = []
    for way, runs in taken.items():
        seconds, cpu = (statistics.median(column) for column in zip(*runs[2:], strict=True))
        first = rows[0]["cpu"] if rows else cpu
        rows.append({"part": part, "case": case, "way": way, "seconds": seconds, "cpu": cpu})
        rows[-1] |= {"times": cpu / first, "count": count}
        print(f"{part}, {case}, {way}: {seconds * 1e3:.1f} ms, {cpu * 1e3:.1f} ms CPU", flush=True)
    return rows


# ---- kernels -----------------------------------------------------------------------------------

SGD = LocalConfig(lr=LR, epochs=1, batch_size=20)
PROX = FedProxConfig(mu=0.1, local=SGD)
CLIENTS: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "SGD": lambda m: (FedAvgClient(FedAvgConfig(local=SGD), m), Weights),
    "momentum": lambda m: (FedAvgClient(FedAvgConfig(local=replace(SGD, momentum=0.9)), m), Weights),
    "Adam": lambda m: (FedAvgClient(FedAvgConfig(local=replace(SGD, optimizer="adam")), m), Weights),
    "proximal": lambda m: (FedProxClient(PROX, m), ProxWeights),
}


def _within(context: Callable[[], Any], run: Callable[[], Any]) -> Run:
    def inside() -> None:
        with context():
            failed = [a for a in run() if isinstance(a, Exception)]
        if failed:
            raise failed[0]

    return inside


def _training() -> Iterator[Case]:
    """Local training of 100 clients, 200 samples each."""
    for name in ("lr", "mlp"):
        work = Work(name, M=100)
        model, fed = make_model(work), federation(*tensors(work), test=slice(1))
        for rule, make in CLIENTS.items():
            client, order = make(model)

            def run(runner: Any, client: Any = client, order: Any = order, fed: Any = fed) -> Any:
                cohort = Cohort(client, fed, RamStore(), Plan(), RunnerConfig(runner))
                header, sent = {"kind": "train", "t": 1, "e": 0}, order(cohort.params)
                requests = [Request(k, sent, header) for k in range(fed.num_clients)]
                return lambda: cohort.handle(requests)

            ways = {
                "kernel in C": _within(ExitStack, run("stack")),
                "autograd under vmap": _within(autograd_only, run("stack")),
                "loop": _within(autograd_only, run("loop")),
            }
            yield "training", f"{name}, {rule}", ways


def _evaluation() -> Iterator[Case]:
    """Losses and accuracies of 500 personal models."""
    for name in ("lr", "mlp"):
        work = Work(name, M=500, n=70)
        stack, loop = (evaluation_of(work, make_model(work), RunnerConfig(r)) for r in ("stack", "loop"))
        ways = {"kernel in C": _within(ExitStack, stack), "torch under vmap": _within(autograd_only, stack)}
        yield "evaluation", name, ways | {"loop": _within(autograd_only, loop)}
