"""`fedpers bench`: our runners and every installed peer on the same work, interleaved, as ratios.

    fedpers bench [rounds] [--models lr,mlp] [--rounds 8] [--passes 3] [--workers 2] [--out DIR]
    fedpers bench methods | population | evaluation | parts | gpu

Each engine runs in a process of its own, pass after pass, so that what else the machine does hits
all of them; the median over all rounds but each process's first is what counts.
"""

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil

from fedpers.bench.table import ROUNDS, SUITES, table, update
from fedpers.bench.work import FLOPS, NO_KERNELS, Work, versions

SETTINGS = {
    "lr": Work("lr", M=1000, C=100, rounds=20),
    "mlp": Work("mlp", M=1000, C=100, rounds=16),
    "lenet": Work("lenet", M=100, C=10),
    "cnn": Work("cnn", M=100, C=10, rounds=4),
}
PEERS = {"flower-ray": "ray", "flower-grid": "flwr", "pfl-research": "pfl", "fedjax": "fedjax"}
Result = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a suite; returns the exit status."""
    args = parser().parse_args(argv)
    if args.suite == "rounds":
        for model in (args.models or ",".join(FLOPS)).split(","):
            write(rounds(args, model), f"rounds-{model}", Path(args.out))
        return 0
    from fedpers.bench import suites

    write(suites.SUITES[args.suite](args), args.suite, Path(args.out))
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(prog="fedpers bench", description=__doc__.split("\n")[0])
    found.add_argument("suite", nargs="?", default="rounds", choices=list(SUITES))
    found.add_argument("--models", help="rounds: which settings; methods: names of models; all")
    found.add_argument("--methods", default="", help="methods: which; all")
    found.add_argument("--engines", default="", help="rounds: which engines; all that are there")
    found.add_argument("--rounds", type=int, default=0, help="rounds of one process")
    found.add_argument("--passes", type=int, default=3, help="times that each engine is run")
    found.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    found.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="ENGINE=PATH",
        help="rounds: another interpreter for a peer that needs its own environment",
    )
    found.add_argument("--data", default="", help="gpu: folder of cifar-10-batches-py; else random images")
    found.add_argument("--out", default="benchmarks/results", help="folder for the results")
    return found


def engines(workers: int, elsewhere: Sequence[str] = ()) -> list[tuple[str, int]]:
    """(engine, processes): ours and the peers that are installed, here or `elsewhere`."""
    own = [("auto", 1), ("auto", workers), (NO_KERNELS, 1), ("loop", 1), ("stack", 1), ("tight", 1)]
    there = [name for name, module in PEERS.items() if name in elsewhere or importlib.util.find_spec(module)]
    found = [*own, *((name, workers if name == "flower-ray" else 1) for name in there)]
    if "pfl-research" in there:
        found.append(("pfl-research", workers))
    return list(dict.fromkeys(found))


def rounds(args: argparse.Namespace, model: str) -> list[Result]:
    """A row an engine: seconds a round, memory, share of what the machine can do."""
    wanted = set(filter(None, args.engines.split(",")))
    pythons = dict(p.split("=", 1) for p in args.python)
    chosen = [e for e in engines(args.workers, list(pythons)) if not wanted or e[0] in wanted]
    work = SETTINGS[model]
    work = replace(work, rounds=args.rounds or work.rounds)
    taken: dict[tuple[str, int], list[Result]] = {e: [] for e in [("floor", 1), *chosen]}
    for number in range(args.passes):
        for engine, workers in taken:
            python = pythons.get(engine, sys.executable)
            found = run_one(engine, replace(work, workers=workers), python)
            if found is not None:
                taken[engine, workers].append(found)
            print(f"{model} pass {number + 1}: {engine} x{workers} {_short(found)}", flush=True)
    rows = summarise(work, taken)
    print(table(rows, ROUNDS))
    return rows


def summarise(work: Work, taken: dict[tuple[str, int], list[Result]]) -> list[Result]:
    """Medians over passes and rounds, without each process's first round."""
    ceilings = [max(r["sgemm"], r["conv"]) for r in taken.pop(("floor", 1)) if r]
    ceiling = statistics.median(ceilings) if ceilings else float("nan")
    rows = []
    for (engine, workers), results in taken.items():
        seconds = [s for r in results for s in r["seconds"][1:]]
        if not seconds:
            continue
        middle = statistics.median(seconds)
        cpu = statistics.median(s for r in results for s in r["cpu"][1:])
        own = engine != "flower-ray" and workers == 1
        rows.append(
            {
                **asdict(work),
                "engine": engine,
                "processes": workers,
                "seconds": middle,
                "cpu": cpu if own else None,
                "fastest": min(seconds),
                "slowest": max(seconds),
                "count": len(seconds),
                "first": statistics.median(r["seconds"][0] for r in results),
                "peak_mb": max(r["peak_mb"] for r in results),
                "gflops": work.flops / middle / 1e9,
                "ceiling_gflops": ceiling,
                "share_of_ceiling": work.flops / middle / 1e9 / (ceiling * workers),
                "versions": results[0].get("versions", {}),
            }
        )
    best = min((r["seconds"] for r in rows if r["engine"] == "auto"), default=float("nan"))
    for row in rows:
        row["times_ours"] = row["seconds"] / best
    return sorted(rows, key=lambda row: float(row["seconds"]))


def run_one(engine: str, work: Work, python: str = sys.executable, timeout: float = 1800) -> Result | None:
    """One engine in a process of its own; None if it fails."""
    launch = ["-m", "torch.distributed.run", "--nproc_per_node", str(work.workers)]
    launch = launch if engine == "pfl-research" and work.workers > 1 else []  # its own way
    command = [python, *launch, "-m", "fedpers.bench.engines", engine, json.dumps(asdict(work))]
    quiet = {"OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **quiet, "PYTHONPATH": path},
    )
    peak = Peak(process.pid)
    try:
        text, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        text, _ = process.communicate()
    peak.stop()
    for line in reversed(text.splitlines()):
        if line.startswith("RESULT "):
            return {**json.loads(line[7:]), "peak_mb": peak.megabytes}
    print(text[-2000:], file=sys.stderr)
    return None


class Peak:
    """Largest memory of a process and its descendants, looked at every second."""

    def __init__(self, pid: int) -> None:
        self.process, self.megabytes, self._stop = psutil.Process(pid), 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(1.0):
            with suppress(psutil.Error):
                family = [self.process, *self.process.children(recursive=True)]
                self.megabytes = max(self.megabytes, sum(map(memory, family)) / 2**20)

    def stop(self) -> None:
        """Stop looking."""
        self._stop.set()
        self._thread.join()


def memory(process: psutil.Process) -> int:
    """Bytes of a process: its proportional share of all pages but mapped files'; 0 once it has ended."""
    with suppress(psutil.Error):
        maps = process.memory_maps()
        return sum(m.pss for m in maps if m.path.startswith("/dev/shm") or not Path(m.path).is_file())
    return 0


def machine(rows: Sequence[Result] = ()) -> dict[str, Any]:
    """Where the numbers come from; versions are those of the processes that were measured."""
    cpu = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = [x for x in info.read_text().splitlines() if x.startswith("model name")]
        cpu = lines[0].split(":")[1].strip() if lines else cpu
    merged = {name: v for row in rows for name, v in row.get("versions", {}).items()}
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions() | merged,
        "load": os.getloadavg()[0],
        "date": time.strftime("%Y-%m-%d"),
    }


def write(rows: list[Result], name: str, out: Path) -> Path:
    """The results as JSON; in a source tree the tables of docs/performance.md follow."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}.json"
    content = {"machine": machine(rows), "rows": rows}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"written: {path}")
    document = out.resolve().parent.parent / "docs" / "performance.md"
    if document.is_file():
        update(document, out)
    return path


def _short(found: Result | None) -> str:
    if found is None:
        return "failed"
    times = " ".join(f"{s * 1e3:.0f}" for s in found["seconds"])
    return times or f"{found.get('sgemm', 0):.0f} GFLOP/s"


if __name__ == "__main__":
    sys.exit(main())
