"""CPU seconds of PPFL's round on MNIST, as ppfl_table1_mnist has it; --each trains every θ_k by itself.

    python benchmarks/ppfl_round.py [--each] [--rounds 12]

It prints the median of rounds in one process, without the first ten. To compare checkouts run them in turn.
"""

import argparse
import statistics

import torch

from fedpers.app.build import assemble
from fedpers.bench.engines import play
from fedpers.bench.work import Clock
from fedpers.config import compose
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.runner import RunnerConfig
from fedpers.families.mixtures.mixture import MixedLoss

WARM = (
    10  # rounds before anything is measured: compiled code, first momenta, the search for the size of stacks
)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--each", action="store_true", help="steps on all K models, not on their mixture")
    parser.add_argument("--rounds", type=int, default=12)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.each:
        MixedLoss.minimise = lambda *given: None  # type: ignore[method-assign]
    parts = assemble(compose.load(["+experiment=ppfl_table1_mnist", "eval_every=0", "device=cpu"]))
    clock = Clock()
    how = (RamStore(), RunnerConfig(), WARM + args.rounds, lambda t, log: clock.done())
    play(parts.strategy, parts.client, parts.federation, *how)
    print(f"{statistics.median(clock.cpu[WARM:]):.4f}")


if __name__ == "__main__":
    main()
