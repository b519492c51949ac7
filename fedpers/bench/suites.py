"""Further suites of `fedpers bench`: methods beside Ray, populations, evaluation, a GPU."""

import argparse
import csv
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedpers.bench.engines import play
from fedpers.bench.evaluation import evaluation
from fedpers.bench.work import Result, federation
from fedpers.clients.fedper import FedPerClient, FedPerConfig
from fedpers.config.registry import METHODS
from fedpers.core.plan import Plan
from fedpers.engines.memory.row_store import RowStore
from fedpers.engines.runner import RunnerConfig
from fedpers.learning.model import build_model
from fedpers.learning.optimizers import LocalConfig
from fedpers.strategies.fedper import FedPer


def methods(args: argparse.Namespace) -> list[Result]:
    """Each method at 100 clients in process, alone and with workers, and on Ray, as users run it."""
    ways = {
        "inprocess": ["engine=inprocess"],
        "workers": ["engine=inprocess", f"engine.workers={args.workers}"],
        "ray": ["engine=ray"],
        "messages": ["engine=ray", "engine.chunk=1"],
    }
    rows = []
    for model in args.models.split(",") if args.models else ("logistic", "mlp"):
        for name in args.methods.split(",") if args.methods else METHODS:
            setting = [f"method={name}", f"model={model}"]
            row: Result = {way: _run_method([*setting, *more], args) for way, more in ways.items()}
            row |= {"method": name, "model": model, "count": args.workers}
            ours = [row[way] for way in ("inprocess", "workers") if row[way]]
            for way in ("ray", "messages"):
                row[f"times_{way}"] = row[way] / min(ours) if ours and row[way] else None
            print(row, flush=True)
            rows.append(row)
    return rows


def _run_method(overrides: list[str], args: argparse.Namespace) -> float | None:
    """Median seconds of a round in the second half of a run; None if the run fails."""
    with tempfile.TemporaryDirectory() as folder:
        out, count = Path(folder) / "run", args.rounds or 20
        data = ["data=digits", "data.num_clients=100", "data.partition=iid"]
        fixed = [*data, "eval_every=0", "checkpoint_every=0", f"rounds={count}", f"out={out}"]
        command = [sys.executable, "-m", "fedpers", "run", *overrides, *fixed]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stderr[-500:], file=sys.stderr)
            return None
        rows = list(csv.DictReader((out / "metrics.csv").open()))
    seconds = {int(r["round"]): float(r["seconds"]) for r in rows if r["seconds"]}
    return statistics.median(s for t, s in seconds.items() if t > count // 2)


def population(args: argparse.Namespace) -> list[Result]:
    """Private heads of 20 KB: a round of 1,000 out of 1,000, 1,000,000 and 10,000,000 clients, in turns."""
    numbers = (1000, 1_000_000, 10_000_000)
    found: dict[int, list[dict[str, Any]]] = {number: [] for number in numbers}
    for number in numbers * args.passes:
        code = f"from fedpers.bench.suites import heads; heads({number}, {args.rounds or 40})"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        found[number].append(json.loads(done.stdout.splitlines()[-1]))
    rows: list[Result] = []
    for number, runs in found.items():
        seconds = statistics.median(s for run in runs for s in run["seconds"])
        peaks = {part: max(run[part] for run in runs) for part in ("peak_mb", "disk_mb")}
        rows.append({"clients": number, "seconds": seconds, **peaks})
        if len(rows) > 1:
            rows[-1]["times"] = seconds / rows[0]["seconds"]
        print(rows[-1], flush=True)
    return rows


def heads(number: int, rounds: int) -> None:
    """Print seconds of the later half of the rounds, the process's peak MB, and MB on disk."""
    torch.set_num_threads(1)
    rng, n, dim = np.random.default_rng(0), 20, 32
    x = torch.from_numpy(rng.standard_normal((1000, n, dim), dtype=np.float32))
    y = torch.from_numpy(rng.integers(0, 10, (1000, n)))
    model = build_model("mlp", input_shape=(dim,), num_outputs=10, task="classification", hidden=[512])
    config = FedPerConfig(local=LocalConfig(lr=0.05, batch_size=10))
    strategy = FedPer(config, model, Plan(clients_per_round=1000, eval_every=0))
    client, fed = FedPerClient(config, model), federation(x, y, slice(None), number)
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        store = RowStore(Path(folder), memory_mb=128)  # full after six rounds
        play(strategy, client, fed, store, RunnerConfig(), rounds, lambda t, log: seconds.append(log.seconds))
        disk = sum(f.stat().st_blocks * 512 for f in Path(folder).iterdir()) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds[rounds // 2 :], "peak_mb": peak, "disk_mb": disk}))


def gpu(args: argparse.Namespace) -> list[Result]:
    """pfl-research's CIFAR-10 benchmark on one GPU."""
    from fedpers.bench import gpu

    return gpu.measure(args.data, args.rounds or 1500)


def cuda(args: argparse.Namespace) -> list[Result]:
    """Rounds of 100 clients on one GPU."""
    from fedpers.bench.cuda import cuda

    return cuda(args)


Suite = Callable[[argparse.Namespace], list[Result]]
SUITES: dict[str, Suite] = {f.__name__: f for f in (methods, population, evaluation, gpu, cuda)}
