"""Four nodes of Ray with a CPU each beside one node with four, in turns: medians of the pairs, a row a work.

Each is a cluster of its own on this machine. "mlp" and "cnn": FedAvg, 100 clients of 200 samples a round
(`fedpers.bench.work`); "heads": FedPer, 1,000 clients with private heads of 20 KB and hardly any arithmetic
(`fedpers bench population`). Works that are not named keep their rows in the file.

    python benchmarks/ray_nodes.py [--pairs 5] [--rounds 12] --json FILE mlp cnn heads
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from fedpers.bench.main import keep
from fedpers.bench.population import HEADS, NODES, run_setting

CLIENTS = {HEADS: 1000}  # of the population; of the others 100
WAYS = {"four nodes s": (4, 1), "one node s": (1, 4)}


def seconds(trains: str, nodes: int, cpus: int, rounds: int) -> float:
    """The median of a round."""
    return statistics.median(
        run_setting((CLIENTS.get(trains, 100), NODES, nodes, cpus), rounds, trains)["seconds"]
    )


def measured(trains: str, pairs: int, rounds: int) -> dict[str, Any]:
    """The row of one work; which way is first takes turns."""
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    for pair in range(pairs):
        for name in list(WAYS)[:: -1 if pair % 2 else 1]:
            found[name].append(seconds(trains, *WAYS[name], rounds))
        print(trains, {name: values[-1] for name, values in found.items()}, flush=True)
    ratios = sorted(four / one for four, one in zip(*found.values(), strict=True))
    row = {"work": trains, "pairs": pairs, "rounds": rounds} | {
        name: statistics.median(v) for name, v in found.items()
    }
    return row | {"four to one": statistics.median(ratios), "least": ratios[0], "most": ratios[-1]}


def command(row: dict[str, Any]) -> str:
    """What measures a row again."""
    how = f"--pairs {row['pairs']} --rounds {row['rounds']}"
    return f"python benchmarks/ray_nodes.py {how} --json benchmarks/results/ray_nodes.json {row['work']}"


def main() -> None:
    """Measure the works that are named."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("work", nargs="+", choices=("mlp", "cnn", HEADS))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    rows = json.loads(args.json.read_text())["rows"] if args.json.exists() else []
    for trains in args.work:
        row = measured(trains, args.pairs, args.rounds)
        rows = [r for r in rows if r["work"] != trains] + [row]
        keep(rows, "\n".join(map(command, rows)), args.json)


if __name__ == "__main__":
    main()
