"""How many times the rounds of one process do two make, beside two plain loops that share nothing?

All live at the same time and take turns of a round, so that what the machine does falls on all alike.
Plain loops are bound to a core each. The medians of the turns' ratios are kept, with their quartiles.

    python benchmarks/two_processes.py [--seconds 70] [--clients 100] [--json FILE] mlp cnn
"""

import argparse
import json
import multiprocessing
import os
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from fedpers.bench import engines
from fedpers.bench.main import keep
from fedpers.bench.work import Work

PAIRS = {"plain": ("one loop", "two loops"), "ours": ("one process", "two processes")}


class Turns:
    """In place of a benchmark's clock: tells that a round is done, and waits for the next turn."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe

    def done(self) -> None:
        """A round is done."""
        self.pipe.send(None)
        if self.pipe.recv() == "end":
            os._exit(0)  # its workers see their socket closed

    def result(self) -> dict[str, Any]:
        """Nothing."""
        return {}


def played(pipe: Connection, name: str, work: Work, core: int) -> None:
    """Rounds without end, in a process of its own."""
    torch.set_num_threads(1)
    engines.Clock = lambda: Turns(pipe)  # type: ignore[assignment,misc]
    if name.endswith("loop") or name.endswith("loops"):
        os.sched_setaffinity(0, {core})
        engines.tight(work)
    else:
        engines.ours(work, "auto")


def measured(model: str, clients: int, seconds: float, cold: int) -> dict[str, Any]:
    """The row of one model."""
    few = max(clients // 5, 10)  # of a plain loop, which is slower
    kinds = {"one loop": (few, 1, 1), "two loops": (few, 1, 2), "one process": (clients, 1, 1),
             "two processes": (clients, 2, 1)}  # fmt: skip
    context, ends = multiprocessing.get_context("spawn"), dict[str, list[Connection]]()
    cores = sorted(os.sched_getaffinity(0))
    for name, (count, workers, copies) in kinds.items():
        work, ends[name] = Work(model, M=100, C=count, rounds=10**9, workers=workers), []
        for i in range(copies):
            ours, theirs = context.Pipe()
            context.Process(target=played, args=(theirs, name, work, cores[i]), daemon=workers < 2).start()
            ends[name].append(ours)
    for each in ends.values():
        for end in each:
            end.recv()
    found = {name: list[float]() for name in kinds}
    until = time.monotonic() + seconds
    while time.monotonic() < until or len(found["one loop"]) <= cold + 1:
        for name, (count, _, copies) in kinds.items():
            found[name].append(turn(ends[name]) / count / copies)
    for each in ends.values():
        for end in each:
            end.send("end")
    row: dict[str, Any] = {"model": model, "clients": clients, "turns": len(found["one loop"]) - cold}
    for what, (slow, fast) in PAIRS.items():
        ratios = [a / b for a, b in zip(found[slow][cold:], found[fast][cold:], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        row |= {f"{what}: two to one": middle, f"{what}: quartiles": f"{low:.2f} to {high:.2f}"}
    return row


def turn(ends: list[Connection]) -> float:
    """Seconds of one round of all processes at these ends."""
    began = time.perf_counter()
    for end in ends:
        end.send("go")
    for end in ends:
        end.recv()
    return time.perf_counter() - began


def main() -> None:
    """Measure each model; the file's rows of others stay."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("models", nargs="*", default=["mlp", "cnn"])
    parser.add_argument("--seconds", type=float, default=70, help="of the turns of one model")
    parser.add_argument("--cold", type=int, default=8, help="turns that do not count")
    parser.add_argument("--clients", type=int, default=100, help="a round")
    parser.add_argument("--json", type=Path, help="of benchmarks/results")
    args = parser.parse_args()
    for model in args.models:
        row = measured(model, args.clients, args.seconds, args.cold)
        print(json.dumps(row), flush=True)
        if args.json:
            known = json.loads(args.json.read_text())["rows"] if args.json.exists() else []
            rows = [r for r in known if r["model"] != model] + [row]
            keep(rows, f"python benchmarks/two_processes.py --seconds {args.seconds:g}", args.json)


if __name__ == "__main__":
    main()
