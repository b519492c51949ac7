"""How long a command takes from its start to the end of its first round, beside `import torch` alone.

In turns, each in a process of its own; medians. The first round is over when metrics.csv has a row.

    python benchmarks/start.py [--times 3]
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from fedpers.bench.main import write
from fedpers.bench.work import Result

MANY = ["data=synthetic_classes", "data.num_clients=100000", "data.num_samples=1000000"]
MANY += ["method=fedavg", "clients_per_round=100", "eval_clients=100"]
RUNS = {
    "fedpers run": [],
    **{
        f"100,000 clients of ten samples, {rule}": [*MANY, f"data.partition={rule}"]
        for rule in ("iid", "classes", "shards", "dirichlet")
    },
}
PAUSE = 0.01  # seconds between two looks
FEDPERS = [sys.executable, "-m", "fedpers", "run", "rounds=1"]
TORCH = [sys.executable, "-c", "import torch"]


def first_round(keys: Sequence[str]) -> float:
    """Seconds until the first round of a run with these keys is over.

    Raises:
        SystemExit: the run ended without one.
    """
    with tempfile.TemporaryDirectory() as folder:
        began, table = time.perf_counter(), Path(folder) / "run" / "metrics.csv"
        command = [*FEDPERS, *keys, f"out={table.parent}"]
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while run.poll() is None and not _has_row(table):
            time.sleep(PAUSE)
        took = time.perf_counter() - began
        said = run.communicate()[1]
        if not _has_row(table):
            raise SystemExit(f"{' '.join(keys)}: no round\n{said}")
        return took


def _has_row(table: Path) -> bool:
    return table.is_file() and table.read_text(encoding="utf-8").count("\n") > 1


def imported() -> float:
    """Seconds of `import torch`."""
    began = time.perf_counter()
    subprocess.run(TORCH, check=True)
    return time.perf_counter() - began


def measured(times: int) -> list[Result]:
    """A row for each command: medians of seconds."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in RUNS}
    for name in [*RUNS] * times:
        torch = imported()
        found[name].append((first_round(RUNS[name]), torch))
        print(name, *found[name][-1], flush=True)
    rows = []
    for name, pairs in found.items():
        run, torch = map(statistics.median, zip(*pairs, strict=True))
        rows.append({"run": name, "seconds": run, "torch": torch})
    return rows


def main() -> None:
    """Measure, write start.json and the table."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    write(measured(args.times), "start", args.out)


if __name__ == "__main__":
    main()
