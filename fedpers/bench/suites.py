"""Further suites of `fedpers bench`: methods beside Ray, populations, evaluation, a GPU."""

import argparse
import csv
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from fedpers.bench.evaluation import evaluation
from fedpers.bench.population import population
from fedpers.bench.work import Result
from fedpers.config.registry import METHODS


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
        data = [] if any(o.startswith("data=") for o in overrides) else data
        fixed = [*data, "eval_every=0", "checkpoint_every=0", f"rounds={count}", f"out={out}"]
        command = [sys.executable, "-m", "fedpers", "run", *overrides, *fixed]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stderr[-500:], file=sys.stderr)
            return None
        rows = list(csv.DictReader((out / "metrics.csv").open()))
    seconds = {int(r["round"]): float(r["seconds"]) for r in rows if r["seconds"]}
    return statistics.median(s for t, s in seconds.items() if t > count // 2)


def gpu(args: argparse.Namespace) -> list[Result]:
    """pfl-research's CIFAR-10 benchmark on one GPU."""
    from fedpers.bench import gpu

    return gpu.measure(args.data, args.rounds or 1500)


def cuda(args: argparse.Namespace) -> list[Result]:
    """Rounds of 100 clients on one GPU."""
    from fedpers.bench.cuda import cuda

    return cuda(args)


def devices(args: argparse.Namespace) -> list[Result]:
    """FedAvg with an MLP of 25 million parameters, all 100 clients a round: on one GPU, on two, ... on N."""
    data = ["data=synthetic_classes", "data.num_clients=100", "data.num_samples=20000", "data.partition=iid"]
    work = ["method=fedavg", "model=mlp", "model.hidden=[5000,5000]", "engine.precision=tf32", *data]
    rows: list[Result] = []
    for count in range(1, args.devices + 1):
        seconds = _run_method([*work, f"devices=[{','.join(map(str, range(count)))}]"], args)
        rows.append({"count": count, "seconds": seconds})
        rows[-1]["times"] = rows[0]["seconds"] / seconds if seconds and rows[0]["seconds"] else None
        print(rows[-1], flush=True)
    return rows


Suite = Callable[[argparse.Namespace], list[Result]]
SUITES: dict[str, Suite] = {f.__name__: f for f in (methods, population, evaluation, gpu, cuda)}
