"""Evaluation of personal models: stacked, one after another, and with a DataLoader as libraries do it."""

import argparse
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader

from fedpers.bench.work import AsModule, Result, Work, federation, make_model, take_turns, tensors
from fedpers.clients.fedper import FedPerClient, FedPerConfig
from fedpers.core.plan import Plan
from fedpers.engines.cohort import Cohort
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.runner import RunnerConfig
from fedpers.families.split_models.client import OwnPart, SharedPart
from fedpers.flower.messages import Header, Request


def evaluation(args: argparse.Namespace) -> list[Result]:
    """FedPer models of 500 clients, 50 samples each: stacked, looped, and with a DataLoader."""
    torch.set_num_threads(1)
    hows = {"loop": RunnerConfig("loop"), "auto": RunnerConfig()}
    hows[f"auto x{args.workers}"] = RunnerConfig(workers=args.workers)
    rows = []
    for name in ("lr", "mlp"):
        work = Work(name, M=500, n=70)
        ways = {"dataloader": _loader(work)} | {e: evaluation_of(work, how) for e, how in hows.items()}
        taken = take_turns(ways, 5 * args.passes)  # chunk sizes are tried in the first few
        for engine, found in taken.items():
            times = taken["dataloader"]["seconds"] / found["seconds"]
            rows.append({"model": name, "engine": engine, "seconds": found["seconds"], "times": times})
            print(f"{name} {engine}: {found['seconds'] * 1e3:.0f} ms, {times:.1f}x", flush=True)
    return rows


def evaluation_of(work: Work, how: RunnerConfig) -> Callable[[], None]:
    """Evaluates every client's model, a shared body and a head of its own, on its last 50 samples."""
    model, fed = make_model(work), federation(*tensors(work), test=slice(-50, None))
    cohort = Cohort(FedPerClient(FedPerConfig(), model), fed, RamStore(), Plan(), how)
    for k in range(work.M):
        cohort.store.put(k, (0, 0), OwnPart(model.init_head(k)))
    order = SharedPart({k: v for k, v in model.init(0).items() if not model.is_head(k)})
    return answering(cohort, order, "evaluate", range(work.M))


def answering(cohort: Cohort, order: Any, kind: str, clients: Iterable[int]) -> Callable[[], None]:
    """A function that has the clients answer an order; it raises the first client's failure."""
    requests = [Request(k, order, Header(kind, 1, 0)) for k in clients]

    def run() -> None:
        for failed in (a for a in cohort.handle(requests) if isinstance(a, Exception)):
            raise failed

    return run


def _loader(work: Work) -> Callable[[], None]:
    """The same as libraries do it: samples one by one into batches of 10, one model after another."""
    (x, y), model = tensors(work), make_model(work)
    module = AsModule(model)
    own = [{n.replace(".", "_"): v for n, v in model.init_head(k).items()} for k in range(work.M)]

    def run() -> None:
        for k in range(work.M):
            module.load_state_dict({**module.state_dict(), **own[k]})
            samples: Any = list(zip(x[k, -50:], y[k, -50:], strict=True))
            with torch.no_grad():
                sum(int((module(a).argmax(1) == b).sum()) for a, b in DataLoader(samples, 10))

    return run
