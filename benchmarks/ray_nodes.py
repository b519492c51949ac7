"""Four nodes of Ray with a CPU each beside one node with four, in turns: a row a pair, and their median.

Each is a cluster of its own on this machine, 1,000 clients of FedPer a round (`fedpers bench population`).
Pairs are added to those of the file, so that they may be measured one at a time.

    python benchmarks/ray_nodes.py [--pairs 5] [--rounds 20] --json benchmarks/results/ray_nodes.json
"""

import argparse
import json
import statistics
from pathlib import Path

from fedpers.bench.main import keep
from fedpers.bench.population import NODES, run_setting

CLIENTS = 1000  # of the population


def seconds(nodes: int, cpus: int, rounds: int) -> float:
    """The median of a round."""
    return statistics.median(run_setting((CLIENTS, NODES, nodes, cpus), rounds)["seconds"])


def main() -> None:
    """Measure the pairs; which is first takes turns."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    rows = json.loads(args.json.read_text())["rows"][:-1] if args.json.exists() else []
    for _ in range(args.pairs):
        ways = {"four nodes s": (4, 1), "one node s": (1, 4)}
        order = list(ways) if len(rows) % 2 else list(ways)[::-1]
        found = {name: seconds(*ways[name], args.rounds) for name in order}
        row = {"pair": len(rows) + 1} | {name: found[name] for name in ways}
        rows.append(row | {"four to one": found["four nodes s"] / found["one node s"]})
        print(rows[-1], flush=True)
    middle = {name: statistics.median(r[name] for r in rows) for name in rows[0] if name != "pair"}
    command = (
        f"python benchmarks/ray_nodes.py --rounds {args.rounds} --json benchmarks/results/ray_nodes.json"
    )
    keep([*rows, {"pair": "median"} | middle], command, args.json)


if __name__ == "__main__":
    main()
