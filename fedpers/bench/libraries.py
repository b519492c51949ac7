"""Our methods beside PFLlib's: `fedpers bench libraries --pflib CHECKOUT`.

Its code runs as its users run it, `python system/main.py` of a checkout that the user names, on data in a
temporary folder: nothing is written to the checkout. Both have one process and one thread, the same samples,
layers, batches and epochs; evaluations and each process's first round are left out.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedpers.bench.engines import play
from fedpers.bench.processes import watched
from fedpers.bench.work import LR, Clock, Result, Work, arrays, federation, tensors
from fedpers.config import compose
from fedpers.config.registry import method
from fedpers.core.plan import Plan
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.runner import RunnerConfig
from fedpers.learning.model import build_model
from fedpers.learning.training_round import trainings

WORK = Work(M=100, C=20, n=200, B=20, rounds=10)
MANY = Work(M=5000, C=20, n=20, B=20, rounds=3)  # for memory, as each of theirs holds a model
OF_MANY = {"models": ("mlp",), "methods": ("fedavg", "fedper")}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {  # by ours: theirs of the same layers, our options
    "logistic": ("MLR", {}),
    "mlp": ("DNN", {"hidden": [100]}),
}
METHODS = {  # by ours: theirs, with its options where its defaults are another method
    "fedavg": ["FedAvg"],
    "fedprox": ["FedProx", "-mu", "0.1"],
    "fedper": ["FedPer"],
    "fedrep": ["FedRep"],
    "fedbabu": ["FedBABU"],
    "lgfedavg": ["LG-FedAvg"],
    "ditto": ["Ditto", "-mu", "0.1"],
    "fedfomo": ["FedFomo"],
    "perfedavg": ["PerAvg"],
    "pfedme": ["pFedMe"],
    "apfl": ["APFL"],
}
DATA = "fedpers-MNIST"  # their models read the inputs' size from the data's name
MAIN = Path("system") / "main.py"
SAYS = "time cost"  # their line for a round, which ends with its seconds
QUIET = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def libraries(args: argparse.Namespace) -> list[Result]:
    """A row for each method and model."""
    pythons = dict(p.split("=", 1) for p in args.python)
    python, main = pythons.get("pflib", sys.executable), Path(args.pflib).resolve() / MAIN
    models = args.models.split(",") if args.models else list(MODELS)
    names = args.methods.split(",") if args.methods else list(METHODS)
    few = [(model, name) for model in models for name in names]
    many = [(model, name) for model, name in few if model in OF_MANY["models"] and name in OF_MANY["methods"]]
    rows = []
    for work, cases in ((WORK, few), (MANY, many)):
        work = replace(work, rounds=args.rounds or work.rounds)
        with tempfile.TemporaryDirectory() as folder:
            write_data(Path(folder) / "dataset" / DATA, work)
            for model, name in cases:
                ways = {
                    "ours": [sys.executable, "-m", __name__, name, model, json.dumps(asdict(work))],
                    "pflib": [python, str(main), *options(name, model, work)],
                }
                row = {"method": name, "model": model, "clients": work.M}
                rows.append(row | compared(ways, Path(folder), args.passes))
                print(rows[-1], flush=True)
    return rows


def compared(ways: dict[str, list[str]], folder: Path, passes: int) -> Result:
    """Median seconds of a round and largest memory of each command, in turns; None for one that fails."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    peaks = dict.fromkeys(ways, 0.0)
    here = folder / "system"  # they read ../dataset and write ../results
    here.mkdir(exist_ok=True)
    root = str(Path(__file__).resolve().parents[2])
    for _ in range(passes):
        for way, command in ways.items():
            path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
            own = {"PYTHONPATH": path} if way == "ours" else {"PYTHONDONTWRITEBYTECODE": "1"}
            env = {**os.environ, **QUIET, **own}
            text, peak = watched(command, env, cwd=here)
            found = times(text)
            if not found:
                print(f"{way} failed:\n{text[-2000:]}", file=sys.stderr)
            seconds[way] += found
            peaks[way] = max(peaks[way], peak)
    row: Result = {way: statistics.median(s) if s else None for way, s in seconds.items()}
    row |= {f"{way}_mb": peaks[way] if seconds[way] else None for way in ways}
    row["times"] = row["pflib"] / row["ours"] if row["pflib"] and row["ours"] else None
    return row


def times(text: str) -> list[float]:
    """Seconds of the rounds after the first, of a process's output."""
    return [float(line.split()[-1]) for line in text.splitlines() if SAYS in line and line[:1] == "-"][1:]


def options(name: str, model: str, work: Work) -> list[str]:
    """Their command line; rounds are counted from 0, and the first one evaluates."""
    algorithm, *more = METHODS[name]
    given = {
        "-data": DATA,
        "-m": MODELS[model][0],
        "-algo": algorithm,
        "-nc": work.M,
        "-jr": work.C / work.M,
        "-gr": work.rounds,
        "-ls": work.E,
        "-lbs": work.B,
        "-lr": LR,
        "-eg": work.rounds + 1,
        "-dev": "cpu",
    }
    return [*(str(word) for pair in given.items() for word in pair), *more]


def write_data(folder: Path, work: Work) -> None:
    """The samples in their format: an archive a client, with a pickled dict of x [n, 1, 28, 28] and y [n]."""
    x, y = arrays(work)
    for split, size in (("train", work.n), ("test", work.n // 10)):
        (folder / split).mkdir(parents=True)
        for k in range(work.M):
            held: Any = {"x": np.array(x[k, :size]), "y": y[k, :size]}
            np.savez(folder / split / f"{k}.npz", data=held)


def main(argv: list[str]) -> int:
    """Run one method of ours and say what each round took, as they do."""
    torch.set_num_threads(1)
    (name, model), work, halves = argv[:2], Work(**json.loads(argv[2])), method(argv[0])
    config = compose.load([f"method={name}"]).method
    same: dict[str, Any] = {"lr": LR, "epochs": work.E, "steps": 0, "batch_size": work.B}
    config = replace(config, **{key: replace(cfg, **same) for key, cfg in trainings(config).items()})
    shape, given = work.shape, MODELS[model][1]
    network = build_model(model, input_shape=shape, num_outputs=10, task="classification", **given)
    plan = Plan(clients_per_round=work.C, eval_every=0)
    strategy, client = halves.strategy_class()(config, network, plan), halves.client_class()(config, network)
    clock = Clock()
    done: Callable[..., None] = lambda t, log: clock.done()  # noqa: E731
    fed = federation(*tensors(work), test=slice(work.n // 10))
    play(strategy, client, fed, RamStore(), RunnerConfig(), work.rounds + 1, done)
    for seconds in clock.seconds:
        print(f"- {SAYS} - {seconds}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
