"""What knowing the true groups would give: FedAvg inside each, the ceiling of FedeRiCo's experiments.

    python benchmarks/federico_ceiling.py [--seeds 0,1,2] NAME +experiment=federico_fig_neighbors

writes benchmarks/results/NAME.json, Local beside it: accuracy over all clients' test samples, in percent.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fedpers.app.build import assemble
from fedpers.bench.main import keep
from fedpers.bench.work import Result
from fedpers.config import compose
from fedpers.core.data import Federation
from fedpers.simulate import simulate


def part(fed: Federation, members: np.ndarray) -> Federation:
    """The federation of some of the clients."""
    own = {name: getattr(fed, name)[members] for name in ("num_train", "num_test", "label_counts")}
    return replace(
        fed, num_clients=len(members), client=lambda k: fed.client(int(members[k])), truth={}, **own
    )


def accuracy(method: str, overrides: list[str], inside: bool) -> float:
    """Of a method after its last round, in percent; `inside` the true groups, or over all clients."""
    config = compose.load([*overrides, f"method={method}", "eval_every=0"])
    fed = assemble(config).federation
    groups = fed.truth["group"] if inside else np.zeros(fed.num_clients, int)
    right = np.zeros(fed.num_clients)
    for g in np.unique(groups):
        members, parts = np.flatnonzero(groups == g), assemble(config)
        simulate(parts.strategy, parts.client, part(fed, members), config.rounds)
        right[members] = parts.strategy.client_metrics["test_accuracy"] * fed.num_test[members]
    return float(100 * right.sum() / fed.num_test.sum())


def measure(seeds: list[int], overrides: list[str]) -> list[Result]:
    """A row a way: each seed, and their mean."""
    rows = []
    for way, method, inside in (("FedAvg inside the true groups", "fedavg", True), ("Local", "local", False)):
        found = [accuracy(method, [*overrides, f"seed={seed}"], inside) for seed in seeds]
        spread = float(np.std(found, ddof=1)) if len(found) > 1 else 0.0
        rows.append({"way": way, "mean": float(np.mean(found)), "deviation": spread})
        rows[-1]["by seed"] = " ".join(f"{a:.2f}" for a in found)
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measure and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("name")
    parser.add_argument("overrides", nargs="+")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = measure([int(s) for s in args.seeds.split(",")], args.overrides)
    command = (
        f"python benchmarks/federico_ceiling.py --seeds {args.seeds} {args.name} {' '.join(args.overrides)}"
    )
    keep(rows, command, Path(__file__).parent / "results" / f"{args.name}.json")


if __name__ == "__main__":
    main()
