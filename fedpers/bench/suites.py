"""Further suites of `fedpers bench`: methods beside Ray, populations, evaluation, a GPU."""

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Result = dict[str, Any]


def methods(args: argparse.Namespace) -> list[Result]:
    """Each method at 100 clients in process, alone and with workers, and on Ray, as users run it."""
    from fedpers.config.registry import METHODS

    ways = {
        "inprocess": ["engine=inprocess"],
        "workers": ["engine=inprocess", f"engine.workers={args.workers}"],
        "ray": ["engine=ray"],
        "messages": ["engine=ray", "engine.chunk=1"],
    }
    rows = []
    for model in args.models.split(",") if args.models else ("logistic", "mlp"):
        for name in args.methods.split(",") if args.methods else METHODS:
            row: Result = {"method": name, "model": model, "count": args.workers}
            setting = [f"method={name}", f"model={model}"]
            row |= {way: _run_method([*setting, *more], args) for way, more in ways.items()}
            ours = [row[way] for way in ("inprocess", "workers") if row[way]]
            for way in ("ray", "messages"):
                row[f"times_{way}"] = row[way] / min(ours) if ours and row[way] else None
            print(row, flush=True)
            rows.append(row)
    return rows


def _run_method(overrides: list[str], args: argparse.Namespace) -> float | None:
    """Median seconds of a round in the second half of a run; None if the run fails."""
    import csv

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        count = args.rounds or 20
        command = [
            sys.executable,
            "-m",
            "fedpers",
            "run",
            *overrides,
            "data=digits",
            "data.num_clients=100",
            "data.partition=iid",
            f"rounds={count}",
            "eval_every=0",
            "checkpoint_every=0",
            f"out={out}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stderr[-500:], file=sys.stderr)
            return None
        rows = list(csv.DictReader((out / "metrics.csv").open()))
    seconds = {int(r["round"]): float(r["seconds"]) for r in rows if r["seconds"]}
    return statistics.median(s for t, s in seconds.items() if t > count // 2)


# ---- population --------------------------------------------------------------------------------


def population(args: argparse.Namespace) -> list[Result]:
    """Private heads of 20 KB: a round of 1,000 out of 1,000 and out of 1,000,000 clients."""
    rows = []
    for number in (1000, 1_000_000):
        code = f"from fedpers.bench.suites import heads; heads({number}, {args.rounds or 8})"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        seconds, megabytes, disk = map(float, done.stdout.split()[-3:])
        rows.append({"clients": number, "seconds": seconds, "peak_mb": megabytes, "disk_mb": disk})
        print(rows[-1], flush=True)
    rows[-1]["times"] = rows[-1]["seconds"] / rows[0]["seconds"]
    print(f"{rows[-1]['times']:.2f} times the round of the small population")
    return rows


def heads(number: int, rounds: int) -> None:
    """Print median seconds a round, the process's peak MB, and MB on disk."""
    import torch

    from fedpers.clients.fedper import FedPerClient, FedPerConfig
    from fedpers.core.data import ClientData, Data, Federation
    from fedpers.core.plan import Plan
    from fedpers.engines.cohort import Cohort
    from fedpers.engines.inprocess_grid import InProcessGrid
    from fedpers.engines.memory.row_store import RowStore
    from fedpers.flower.observer import Observer
    from fedpers.learning.model import build_model
    from fedpers.learning.optimizers import LocalConfig
    from fedpers.strategies.fedper import FedPer

    torch.set_num_threads(1)
    rng, n, dim = np.random.default_rng(0), 20, 32
    x = torch.from_numpy(rng.standard_normal((1000, n, dim), dtype=np.float32))
    y = torch.from_numpy(rng.integers(0, 10, (1000, n)))
    ones = torch.ones(n)
    none = Data(x[0, :0], y[0, :0], ones[:0])
    parts = [ClientData(d, none, d) for d in (Data(*row, ones) for row in zip(x, y, strict=True))]

    def client(k: int) -> ClientData:
        return parts[k % 1000]

    counts = np.full(number, n)
    fed = Federation("heads", number, (dim,), 10, "classification", client, counts, counts, np.zeros((1, 10)))
    model = build_model("mlp", input_shape=(dim,), num_outputs=10, task="classification", hidden=[512])
    config = FedPerConfig(local=LocalConfig(lr=0.05, batch_size=10))
    strategy = FedPer(config, model, Plan(clients_per_round=1000, eval_every=0, eval_clients=10))
    seconds: list[float] = []

    class Watch(Observer):
        def on_round(self, t: int, log: Any) -> None:
            seconds.append(log.seconds)

    with tempfile.TemporaryDirectory() as folder:
        store = RowStore(Path(folder), memory_mb=128)
        cohort = Cohort(FedPerClient(config, model), fed, store, strategy.plan)
        strategy.start(InProcessGrid(cohort), num_rounds=rounds, observer=Watch())
        disk = sum(f.stat().st_blocks * 512 for f in Path(folder).iterdir()) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(statistics.median(seconds[2:]), peak, disk)


# ---- evaluation --------------------------------------------------------------------------------


def evaluation(args: argparse.Namespace) -> list[Result]:
    """FedPer models of 500 clients, 50 samples each: stacked, looped, and with a DataLoader."""
    from fedpers.bench.work import Work, make_model

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


def _evaluators(work: Any, model: Any, workers: int) -> dict[str, Callable[[], Any]]:
    import torch
    from torch.utils.data import DataLoader

    from fedpers.bench.work import arrays, as_module
    from fedpers.clients.fedper import FedPerClient, FedPerConfig
    from fedpers.core.data import ClientData, Data, Federation
    from fedpers.core.plan import Plan
    from fedpers.engines.cohort import Cohort
    from fedpers.engines.memory.client_store import RamStore
    from fedpers.engines.runner import RunnerConfig
    from fedpers.families.split_models.client import OwnPart, SharedPart
    from fedpers.flower.messages import Request

    torch.set_num_threads(1)
    x, y = (torch.from_numpy(a) for a in arrays(work))
    cut, one = work.n - 50, torch.ones(work.n)
    parts = [
        ClientData(*(Data(x[k, s], y[k, s], one[s]) for s in (slice(cut), slice(0), slice(cut, None))))
        for k in range(work.M)
    ]
    counts = np.full(work.M, 50)
    fed = Federation(
        "bench",
        work.M,
        work.shape,
        10,
        "classification",
        parts.__getitem__,
        counts,
        counts,
        np.zeros((work.M, 10)),
    )
    own = [OwnPart(model.init_head(k)) for k in range(work.M)]
    order = SharedPart({k: v for k, v in model.init(0).items() if not model.is_head(k)})
    header = {"kind": "evaluate", "t": 1, "e": 0}
    requests = [Request(k, order, header) for k in range(work.M)]

    def cohort(runner: RunnerConfig) -> Callable[[], Any]:
        made = Cohort(FedPerClient(FedPerConfig(), model), fed, RamStore(), Plan(), runner)
        for k, state in enumerate(own):
            made.store.put(k, (0, 0), state)
        return lambda: made.handle(requests)

    module = as_module(model)

    def loader() -> list[float]:
        """As libraries do it: samples one by one into batches of 10, one model after another."""
        found = []
        for k in range(work.M):
            state = {f"{n}".replace(".", "_"): v for n, v in own[k].own.items()}
            module.load_state_dict({**module.state_dict(), **state})
            test, right = parts[k].test, 0
            samples: Any = list(zip(test.x, test.y, strict=True))
            with torch.no_grad():
                for a, b in DataLoader(samples, 10):
                    right += int((module(a).argmax(1) == b).sum())
            found.append(right / len(test))
        return found

    return {
        "dataloader": loader,
        "loop": cohort(RunnerConfig("loop")),
        "auto": cohort(RunnerConfig()),
        f"auto x{workers}": cohort(RunnerConfig(workers=workers)),
    }


def gpu(args: argparse.Namespace) -> list[Result]:
    """pfl-research's CIFAR-10 benchmark on one GPU."""
    from fedpers.bench import gpu

    return gpu.main(["--rounds", str(args.rounds or 1500)])


SUITES = {"methods": methods, "population": population, "evaluation": evaluation, "gpu": gpu}
