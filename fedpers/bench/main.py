"""`fedpers bench`: our runners and every installed peer on the same work, interleaved, as ratios.

    fedpers bench [rounds] [--models lr,mlp] [--rounds 8] [--passes 3] [--workers 2] [--out DIR]
    fedpers bench methods [--profile] | population | evaluation | gpu | cuda
    fedpers bench libraries --pflib CHECKOUT --fl-bench CHECKOUT

Each engine runs in a process of its own, pass after pass, so that what else the machine does hits
all of them; the median over all rounds but each process's first is what counts.
"""

import argparse
import importlib.util
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fedpers.bench.columns import ROUNDS, SUITES
from fedpers.bench.processes import watched
from fedpers.bench.table import SCRIPTS, table, update
from fedpers.bench.work import FLOPS, NO_KERNELS, PROFILED, Result, Work, versions
from fedpers.bench.work import MODELS as RUN
from fedpers.config import registry
from fedpers.core import machine as granted
from fedpers.core.errors import ConfigError, unknown
from fedpers.learning.model import MODELS

SETTINGS = {
    "lr": Work("lr", M=1000, C=100, rounds=20),
    "mlp": Work("mlp", M=1000, C=100, rounds=16),
    "lenet": Work("lenet", M=100, C=10),
    "cnn": Work("cnn", M=100, C=10, rounds=4),
}
OWN = ("auto", NO_KERNELS, "loop", "stack", "tight")
PEERS = {"flower-ray": "ray", "flower-grid": "flwr", "pfl-research": "pfl", "fedjax": "fedjax"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a suite; returns the exit status."""
    args = parser().parse_args(argv)
    if problems := mistakes(args):
        raise ConfigError(*problems)
    if args.suite == "rounds":
        for model in (args.models or ",".join(FLOPS)).split(","):
            write(rounds(args, model), f"rounds-{model}", Path(args.out))
    elif args.profile:
        from fedpers.bench.profile import profile

        for model in (args.models or ",".join(PROFILED)).split(","):
            write(profile(args, model), f"profile-{model}-{args.clients or 20}", Path(args.out))
    elif args.devices:
        from fedpers.bench.suites import devices

        write(devices(args), "devices", Path(args.out))
    elif args.suite == "libraries":
        from fedpers.bench.libraries import libraries

        write(libraries(args), args.suite, Path(args.out))
    else:
        from fedpers.bench import suites

        write(suites.SUITES[args.suite](args), args.suite, Path(args.out))
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(prog="fedpers bench", description=__doc__.split("\n")[0])
    found.add_argument("suite", nargs="?", default="rounds", choices=[s for s in SUITES if s not in SCRIPTS])
    found.add_argument("--models", help="rounds: which settings; methods: names of models; all")
    found.add_argument("--methods", default="", help="methods: which; all")
    found.add_argument("--profile", action="store_true", help="methods: where a round goes, and its floor")
    found.add_argument(
        "--clients", type=int, help="clients a round, of 100: methods --profile (20), cuda (100)"
    )
    found.add_argument("--engines", default="", help="rounds: which engines; all that are there")
    found.add_argument("--devices", type=int, metavar="N", help="cuda: rounds on one GPU and on N of them")
    found.add_argument("--rounds", type=int, default=0, help="rounds of one process")
    found.add_argument("--passes", type=int, default=3, help="times that each engine is run")
    found.add_argument("--workers", type=int, default=granted.cores(), help="processes")
    of_peer = "rounds: another interpreter, for a peer that needs its own"
    found.add_argument("--python", action="append", default=[], metavar="ENGINE=PATH", help=of_peer)
    found.add_argument("--pflib", default="", help="libraries: folder of a checkout of PFLlib")
    found.add_argument("--fl-bench", default="", help="libraries: folder of a checkout of FL-bench")
    found.add_argument("--data", default="", help="gpu: folder of cifar-10-batches-py; else random images")
    found.add_argument("--out", default="benchmarks/results", help="folder for the results")
    return found


def mistakes(args: argparse.Namespace) -> list[str]:
    """The mistakes in the arguments, found before anything is measured."""
    methods = libraries_methods() if args.suite == "libraries" else registry.methods()
    known = {
        "--models": (args.models or "", models_of(args), "model"),
        "--engines": (args.engines, [*OWN, *PEERS], "engine"),
        "--methods": (args.methods, methods, "method"),
    }
    found = [
        f"{option}: {unknown(what, name, names)}"
        for option, (given, names, what) in known.items()
        for name in filter(None, given.split(","))
        if name not in names
    ]
    if args.profile and args.suite != "methods":
        found.append(f"--profile {args.suite}: it is for `methods`")
    if args.devices is not None:
        found += devices_missing(args.suite, args.devices)
    if args.suite == "libraries":
        found += checkouts(args.pflib, args.fl_bench)
    least = {"rounds": 0, "passes": 1, "workers": 1, "clients": 1}
    found += [
        f"--{k} {value}: must be at least {v}"
        for k, v in least.items()
        if (value := getattr(args, k)) is not None and value < v
    ]
    others = (*PEERS, "pflib", "fl_bench")
    wrong = [p for p in args.python if p.partition("=")[0] not in others or "=" not in p]
    return found + [f"--python {p}: expected ENGINE=PATH, an engine of {', '.join(others)}" for p in wrong]


def devices_missing(suite: str, count: int) -> list[str]:
    """What is wrong with --devices."""
    there = len(granted.gpus())
    if suite != "cuda":
        return [f"--devices {count}: it is for `cuda`"]
    if count < 2:
        return [f"--devices {count}: one GPU is what `cuda` measures; must be at least 2"]
    return [f"--devices {count}: torch finds {there} CUDA devices here"] if count > there else []


def models_of(args: argparse.Namespace) -> Iterable[str]:
    """The names that --models accepts."""
    if args.suite == "methods":
        return PROFILED if args.profile else MODELS
    if args.suite == "libraries":
        from fedpers.bench.libraries import MODELS as OF_LIBRARIES

        return OF_LIBRARIES
    return RUN if args.suite == "cuda" else SETTINGS


def checkouts(pflib: str, fl_bench: str) -> list[str]:
    """What is wrong with the folders of other libraries."""
    from fedpers.bench.checkouts import CHECKOUTS

    found = [] if pflib or fl_bench else ["libraries: name a checkout, --pflib FOLDER or --fl-bench FOLDER"]
    for option, place, way in (("pflib", pflib, "pflib"), ("fl-bench", fl_bench, "fl_bench")):
        main = CHECKOUTS[way].main
        if place and not (Path(place) / main).is_file():
            found.append(f"--{option} '{place}': expected a checkout, which has {main}")
    return found


def libraries_methods() -> Iterable[str]:
    """The methods that another library has, too."""
    from fedpers.bench.libraries import METHODS

    return METHODS


def engines(workers: int, elsewhere: Sequence[str] = ()) -> list[tuple[str, int]]:
    """(engine, processes): ours and the peers that are installed, here or `elsewhere`."""
    own = [("auto", 1), ("auto", workers), *((name, 1) for name in OWN if name != "auto")]
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
        own = engine != "flower-ray" and workers == 1
        cpu = statistics.median(s for r in results for s in r["cpu"][1:]) if own else None
        rate = work.flops / middle / 1e9
        row = asdict(work) | {"engine": engine, "processes": workers, "seconds": middle, "cpu": cpu}
        row |= {"fastest": min(seconds), "slowest": max(seconds), "count": len(seconds)}
        row["first"] = statistics.median(r["seconds"][0] for r in results)
        row["peak_mb"] = max(r["peak_mb"] for r in results)
        row |= {"gflops": rate, "ceiling_gflops": ceiling, "share_of_ceiling": rate / (ceiling * workers)}
        rows.append(row | {"versions": results[0].get("versions", {})})
    for row in rows:  # beside ours in as many processes
        ours = {r["processes"]: r["seconds"] for r in rows if r["engine"] == "auto"}
        row["times_ours"] = row["seconds"] / ours.get(row["processes"], min(ours.values(), default=math.nan))
    return sorted(rows, key=lambda row: float(row["seconds"]))


def run_one(engine: str, work: Work, python: str = sys.executable, timeout: float = 1800) -> Result | None:
    """One engine in a process of its own; None if it fails."""
    launch = ["-m", "torch.distributed.run", "--nproc_per_node", str(work.workers)]
    launch = launch if engine == "pfl-research" and work.workers > 1 else []  # its own way
    command = [python, *launch, "-m", "fedpers.bench.engines", engine, json.dumps(asdict(work))]
    quiet = {"OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    text, megabytes = watched(command, {**os.environ, **quiet, "PYTHONPATH": path}, timeout)
    for line in reversed(text.splitlines()):
        if line.startswith("RESULT "):
            return {**json.loads(line[7:]), "peak_mb": megabytes}
    print(text[-2000:], file=sys.stderr)
    return None


def machine(rows: Sequence[Result] = ()) -> dict[str, Any]:
    """The machine of the numbers: processor, cores, load, date, and versions in the measured processes."""
    merged = versions() | {name: v for row in rows for name, v in row.get("versions", {}).items()}
    found = {
        "cpu": processor(),
        "cores": granted.cores(),
        "python": platform.python_version(),
        "versions": merged,
    }
    return found | {"load": os.getloadavg()[0], "date": time.strftime("%Y-%m-%d")}


def processor(info: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, with family and model where a virtual machine's name lacks the generation."""
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    pairs = (line.partition(":") for line in reversed(lines))
    first = {name.strip(): value.strip() for name, _, value in pairs}
    name = first.get("model name") or platform.processor() or platform.machine()
    return f"{name} (family {first['cpu family']}, model {first['model']})" if "cpu family" in first else name


def write(rows: list[Result], name: str, out: Path) -> Path:
    """The results as JSON; in a source tree the pages that show them follow."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}.json"
    content = json.dumps({"machine": machine(rows), "rows": rows}, indent=1)
    path.write_text(content + "\n", encoding="utf-8")
    print(f"written: {path}")
    root = out.resolve().parent.parent
    for document in (root / "benchmarks" / "tables.md", root / "docs" / "performance.md"):
        if document.is_file():
            update(document, out)
    return path


def keep(rows: list[Result], command: str, path: Path) -> None:
    """The results of a script with a page of its own, as `fedpers.results.pages` shows them."""
    found = {"machine": machine(rows), "command": command, "rows": rows}
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _short(found: Result | None) -> str:
    if found is None:
        return "failed"
    times = " ".join(f"{s * 1e3:.0f}" for s in found["seconds"])
    return times or f"{found.get('sgemm', 0):.0f} GFLOP/s"


if __name__ == "__main__":
    sys.exit(main())
