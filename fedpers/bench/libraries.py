"""Our methods beside those of other libraries: `fedpers bench libraries --pflib DIR --fl-bench DIR`.

All have one process and one thread, the same samples, layers, batches and epochs; evaluations are left
out, and the first round of each process, but FL-bench's, which says only the mean of all.
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

import torch

from fedpers.bench.checkouts import CHECKOUTS
from fedpers.bench.engines import play
from fedpers.bench.processes import watched
from fedpers.bench.work import LR, Clock, Result, Work, federation, tensors
from fedpers.clients.lsgd import LSGDConfig
from fedpers.config import compose
from fedpers.config.registry import method
from fedpers.core.plan import Plan
from fedpers.engines.memory.row_store import RowStore
from fedpers.engines.runner import RunnerConfig
from fedpers.learning.layers import Conv, Dense, Flatten, Layer, MaxPool, Relu, stack
from fedpers.learning.model import Model, build_model
from fedpers.learning.training_round import trainings

WORK = Work(M=100, C=20, n=200, B=20, rounds=40)  # as most runs, long enough to have met every client
MANY = Work(M=5000, C=20, n=20, B=20, rounds=3)  # for memory, as each of theirs holds a model
OF_MANY = {"models": ("mlp",), "methods": ("fedavg", "fedper"), "ways": ("pflib",)}
HALF: tuple[Layer, ...] = (Relu(), MaxPool(2, 2))
MODELS: dict[str, tuple[Layer, ...]] = {  # the layers of theirs below the head
    "logistic": (Flatten(),),
    "mlp": (Flatten(), Dense(100), Relu()),
    "mlp-200-200": (Flatten(), Dense(200), Relu(), Dense(200), Relu()),
    "lenet": (Conv(6, 5, 0), *HALF, Conv(16, 5, 0), *HALF, Flatten(), Dense(120), Relu(), Dense(84), Relu()),
    "cnn": (Conv(32, 5, 0), *HALF, Conv(64, 5, 0), *HALF, Flatten(), Dense(512), Relu()),
}
CNNS = ("lenet", "cnn")
CNN_ROUNDS = 10  # which take seconds
OF_CNN = ("fedavg", "fedper", "ditto")  # the methods that are run on them
METHODS = tuple(dict.fromkeys(name for library in CHECKOUTS.values() for name in library.methods))
QUIET = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
SAYS = "seconds of a round:"


def libraries(args: argparse.Namespace) -> list[Result]:
    """A row for each method and model."""
    given = {"pflib": args.pflib, "pflib_ram": args.pflib, "fl_bench": args.fl_bench}
    places = {way: Path(place).resolve() for way, place in given.items() if place}
    pythons = dict(p.split("=", 1) for p in args.python)
    models = args.models.split(",") if args.models else list(MODELS)
    names = args.methods.split(",") if args.methods else METHODS
    few = [(m, name) for m in models for name in names if m not in CNNS or args.methods or name in OF_CNN]
    many = [(m, name) for m, name in few if m in OF_MANY["models"] and name in OF_MANY["methods"]]
    rows = []
    for work, cases, ways in ((WORK, few, tuple(places)), (MANY, many, OF_MANY["ways"])):
        with tempfile.TemporaryDirectory() as folder:
            here = {way: Path(folder) / way for way in ways if way in places and cases}
            for way, own in here.items():
                own.mkdir()
                here[way] = CHECKOUTS[way].prepare(places[way], own, work)
            for model, name in cases:
                case = replace(work, rounds=args.rounds or (CNN_ROUNDS if model in CNNS else work.rounds))
                commands = {"ours": [sys.executable, "-m", __name__, name, model, json.dumps(asdict(case))]}
                for way in here:
                    library, python = CHECKOUTS[way], pythons.get(way.removesuffix("_ram"), sys.executable)
                    if name in library.methods and model in library.models:
                        commands[way] = [python, *library.command(places[way], name, model, case)]
                if len(commands) > 1:
                    row = {"method": name, "model": model, "clients": work.M}
                    rows.append(row | compared(commands, here, args.passes))
                    print(rows[-1], flush=True)
    return rows


def compared(commands: dict[str, list[str]], folders: dict[str, Path], passes: int) -> Result:
    """Median seconds of a round and largest memory of each command, in turns; None for one that fails."""
    seconds: dict[str, list[float]] = {way: [] for way in commands}
    peaks = dict.fromkeys(commands, 0.0)
    root = str(Path(__file__).resolve().parents[2])
    for _ in range(passes):
        for way, command in commands.items():
            path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
            own = {"PYTHONPATH": path} if way == "ours" else {"PYTHONDONTWRITEBYTECODE": "1"}
            text, peak = watched(command, {**os.environ, **QUIET, **own}, cwd=folders.get(way))
            found = CHECKOUTS[way].times(text) if way in CHECKOUTS else times(text)
            if not found:
                print(f"{way} failed:\n{text[-2000:]}", file=sys.stderr)
            seconds[way] += found
            peaks[way] = max(peaks[way], peak)
    row: Result = {way: statistics.median(s) if s else None for way, s in seconds.items()}
    row |= {f"{way}_mb": peaks[way] if seconds[way] else None for way in commands}
    ours = row["ours"]
    return row | {f"times_{way}": row[way] / ours for way in folders if row.get(way) and ours}


def times(text: str) -> list[float]:
    """Seconds of our rounds after the first."""
    return [float(line.split()[-1]) for line in text.splitlines() if line.startswith(SAYS)][1:]


def network(model: str, shape: tuple[int, ...]) -> Model:
    """Our model of these layers, with a head for ten classes."""
    made = build_model("logistic", input_shape=(1,), num_outputs=10, task="classification")
    body = stack(shape, *MODELS[model])
    return replace(made, name=model, network=body, num_features=body.num_features)


def main(argv: list[str]) -> int:
    """Run one method of fedpers and print the seconds of each round."""
    torch.set_num_threads(1)
    (name, model), work, halves = argv[:2], Work(**json.loads(argv[2])), method(argv[0])
    config = compose.load([f"method={name}"]).method
    same: dict[str, Any] = {"lr": LR, "epochs": work.E, "steps": 0, "batch_size": work.B}
    config = replace(config, **{key: replace(cfg, **same) for key, cfg in trainings(config).items()})
    if isinstance(config, LSGDConfig):  # has steps of its own instead of a local training
        config = replace(config, tau=work.E * work.n // work.B, batch_size=work.B)
    made, plan = network(model, work.shape), Plan(clients_per_round=work.C, eval_every=0)
    strategy, client = halves.strategy_class()(config, made, plan), halves.client_class()(config, made)
    clock = Clock()
    done: Callable[..., None] = lambda t, log: clock.done()  # noqa: E731
    fed = federation(*tensors(work), test=slice(work.n // 10))
    play(strategy, client, fed, RowStore(), RunnerConfig(), work.rounds + 1, done)
    for seconds in clock.seconds:
        print(SAYS, seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
