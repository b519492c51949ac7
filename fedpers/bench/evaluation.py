"""Evaluation of personal models: stacked, one after another, and with a DataLoader as libraries do it."""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

from fedpers.bench.work import Work, as_module, federation, make_model, tensors
from fedpers.clients.fedper import FedPerClient, FedPerConfig
from fedpers.core.plan import Plan
from fedpers.engines.cohort import Cohort
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.runner import RunnerConfig
from fedpers.families.split_models.client import OwnPart, SharedPart
from fedpers.flower.messages import Request

Result = dict[str, Any]


def evaluation(args: argparse.Namespace) -> list[Result]:
    """FedPer models of 500 clients, 50 samples each: stacked, looped, and with a DataLoader."""

    torch.set_num_threads(1)
    rows = []
    for name in ("lr", "mlp"):
        work = Work(name, M=500, n=70)
        runs = _evaluators(work, make_model(work), args.workers)
        taken: dict[str, list[float]] = {e: [] for e in runs}
        for run in runs.values():
            run()
        for _ in range(5 * args.passes):  # chunk sizes are tried in the first few
            for engine, run in runs.items():
                began = time.perf_counter()
                run()
                taken[engine].append(time.perf_counter() - began)
        base = statistics.median(taken["dataloader"])
        for engine, seconds in taken.items():
            middle = statistics.median(seconds)
            rows.append({"model": name, "engine": engine, "seconds": middle, "times": base / middle})
            print(f"{name} {engine}: {middle * 1e3:.0f} ms, {base / middle:.1f}x", flush=True)
    return rows


def _evaluators(work: Work, model: Any, workers: int) -> dict[str, Callable[[], Any]]:
    """{engine: what evaluates all clients once}."""

    return {
        "dataloader": _loader(work, model),
        "loop": evaluation_of(work, model, RunnerConfig("loop")),
        "auto": evaluation_of(work, model, RunnerConfig()),
        f"auto x{workers}": evaluation_of(work, model, RunnerConfig(workers=workers)),
    }


def evaluation_of(work: Work, model: Any, how: Any) -> Callable[[], Any]:
    """Evaluates every client's model, a shared body and a head of its own, on its last 50 samples."""

    fed = federation(*tensors(work), test=slice(-50, None))
    cohort = Cohort(FedPerClient(FedPerConfig(), model), fed, RamStore(), Plan(), how)
    for k in range(work.M):
        cohort.store.put(k, (0, 0), OwnPart(model.init_head(k)))
    order = SharedPart({k: v for k, v in model.init(0).items() if not model.is_head(k)})
    requests = [Request(k, order, {"kind": "evaluate", "t": 1, "e": 0}) for k in range(work.M)]
    return lambda: cohort.handle(requests)


def _loader(work: Work, model: Any) -> Callable[[], Any]:
    """The same as libraries do it: samples one by one into batches of 10, one model after another."""

    (x, y), module = tensors(work), as_module(model)
    own = [{n.replace(".", "_"): v for n, v in model.init_head(k).items()} for k in range(work.M)]

    def accuracy(k: int) -> float:
        module.load_state_dict({**module.state_dict(), **own[k]})
        samples: Any = list(zip(x[k, -50:], y[k, -50:], strict=True))
        with torch.no_grad():
            return sum(int((module(a).argmax(1) == b).sum()) for a, b in DataLoader(samples, 10)) / 50

    return lambda: [accuracy(k) for k in range(work.M)]
