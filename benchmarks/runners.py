"""Whether `auto` picks the quicker runner: rounds by it, one by one and in stacks, in turns.

    python benchmarks/runners.py [--methods fedavg ditto] [--models mlp] [--clients 20 100] [--out DIR]

Medians of a round's CPU time, all three in one process, one round of each in its turn, after rounds in which
the sizes of chunks are found. `ratio` is `auto` beside the quicker of the other two.
"""

import argparse
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedpers.bench.main import keep
from fedpers.bench.work import MODELS, Clock, Result, Work, federation, make_model, tensors
from fedpers.config import compose
from fedpers.config.registry import METHODS, method
from fedpers.core.errors import FedpersError
from fedpers.core.plan import Plan
from fedpers.engines.cohort import Cohort
from fedpers.engines.inprocess_grid import InProcessGrid
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.runner import RunnerConfig

RUNNERS = ("auto", "loop", "stack")
WARM = 12  # rounds of each before any is measured


def rounds_by(runner: Any, name: str, setting: str, clients: int) -> Callable[[], None]:
    """What runs one more round of a method."""
    halves = method(name)
    work = Work(setting, M=clients if halves.strategy_class().takes_all else 100, C=clients)
    options = [f"model.{key}={value}" for key, value in MODELS[setting][1].items()]
    config = compose.load([f"method={name}", f"model={MODELS[setting][0]}", *options]).method
    if hasattr(config, "local"):
        config = replace(config, local=replace(config.local, batch_size=work.B))
    network, plan = make_model(work), Plan(clients_per_round=clients, eval_every=0)
    strategy = halves.strategy_class()(config, network, plan)
    strategy.evaluates = lambda t: False
    fed = federation(*tensors(work), test=slice(work.n // 10))
    client = halves.client_class()(config, network)
    grid = InProcessGrid(Cohort(client, fed, RamStore(), plan, RunnerConfig(runner)))
    return lambda: strategy.start(grid, num_rounds=strategy.rounds_done + 1)


def compared(name: str, setting: str, clients: int, rounds: int) -> Result:
    """The row of a method."""
    row: Result = {"method": name, "model": MODELS[setting][0], "clients": clients}
    ways = {runner: rounds_by(runner, name, setting, clients) for runner in RUNNERS}
    clocks = {runner: Clock() for runner in RUNNERS}
    for t in range(WARM + rounds):
        for place in range(len(RUNNERS)):  # each comes after each other one as often
            runner = RUNNERS[(t + place) % len(RUNNERS) if t % 2 else (t - place) % len(RUNNERS)]
            clocks[runner].resume()
            ways[runner]()
            clocks[runner].done()
    found = {runner: statistics.median(clock.cpu[WARM:]) for runner, clock in clocks.items()}
    return row | found | {"ratio": found["auto"] / min(found["loop"], found["stack"])}


def main() -> None:
    """Compare, print and write."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--models", nargs="+", default=["lr", "mlp", "lenet"], choices=MODELS)
    parser.add_argument("--clients", nargs="+", type=int, default=[20, 100])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, help="a folder for runners.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for setting in args.models:
        for clients in args.clients:
            for name in args.methods:
                try:
                    rows.append(compared(name, setting, clients, args.rounds))
                except FedpersError as error:
                    print(f"{name}, {setting}: {error}")
                    continue
                shown = (f"{v:.4g}" if isinstance(v, float) else str(v) for v in rows[-1].values())
                print(" ".join(shown), flush=True)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        keep(rows, "python benchmarks/runners.py", args.out / "runners.json")


if __name__ == "__main__":
    main()
