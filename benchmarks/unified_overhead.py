"""What a round costs beyond the clients' arithmetic: messages, bookkeeping, coins, memories.

    python benchmarks/unified_overhead.py [--rounds 300] [--clients 20]

M logistic clients, methods of the unified framework, one process. The arithmetic is what `answer`
takes inside the same rounds, timed there; the overhead is the rest of the round. Times are of the
process (CPU), since a busy machine would be measured otherwise; the least over
`--repeats` is given.
"""

import argparse
import time
from typing import Any

import torch

from fedpers.app.build import assemble
from fedpers.config import compose
from fedpers.engines.cohort import Cohort
from fedpers.engines.inprocess_grid import InProcessGrid
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.runner import RunnerConfig


def measure(method: str, clients: int, rounds: int, runner: Any) -> tuple[float, float]:
    """(milliseconds of a round, of them in the clients' answers)."""
    cfg = compose.load(
        [
            "+experiment=unified_fig1_mx2",
            f"method={method}",
            f"data.num_clients={clients}",
            "data.sigma_h=0.1",
            "method.lam=0.1",
            "data.train_per_client=100",
            "method.report=false",
            "eval_every=0",
            f"rounds={rounds + 5}",
            "device=cpu",
        ]
    )
    parts = assemble(cfg)
    spent, answer = [0.0], parts.client.answer

    def timed(*args: Any) -> Any:
        began = time.process_time()
        found = answer(*args)
        spent[0] += time.process_time() - began
        return found

    parts.client.answer = timed  # type: ignore[method-assign]
    how = RunnerConfig(runner=runner)
    cohort = Cohort(parts.client, parts.federation, RamStore(), parts.plan, how)
    grid, strategy = InProcessGrid(cohort), parts.strategy
    strategy.connect(grid)
    strategy.evaluates = lambda t: False  # type: ignore[method-assign]
    strategy.start(grid, num_rounds=5)
    spent[0], began = 0.0, time.process_time()
    strategy.start(grid, num_rounds=rounds + 5)
    whole = time.process_time() - began
    return whole / rounds * 1e3, spent[0] / rounds * 1e3


def main() -> None:
    """A line for each method."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=["lsgd", "scd", "acd", "asvrcd"])
    parser.add_argument("--runner", default="auto", choices=["auto", "loop", "stack"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| method | ms a round | of them arithmetic | overhead |\n|---|---|---|---|")
    for method in args.methods:
        what = (method, args.clients, args.rounds, args.runner)
        runs = [measure(*what) for _ in range(args.repeats)]
        whole, own = min(runs, key=lambda r: r[0] - r[1])
        print(f"| {method} | {whole:.2f} | {own:.2f} | {whole - own:.2f} |", flush=True)


if __name__ == "__main__":
    main()
