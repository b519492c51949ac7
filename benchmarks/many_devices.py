"""A hundred devices on one SuperLink for ten rounds: seconds a round, memory a node, what was lost.

    python benchmarks/many_devices.py            writes benchmarks/results/many_devices.json

SuperLink, database and server app are those of a deployment; the nodes are light, see light_nodes.
"""

import argparse
import csv
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import light_nodes
from device_link import SERVER_APP, SUPERLINK, Local

from fedpers.app.run import execute
from fedpers.bench.main import machine
from fedpers.config.compose import load
from fedpers.core.host import owned
from fedpers.deploy.deal import deal

FILE = Path(__file__).parent / "results" / "many_devices.json"
COUNTS = ("asked", "answered", "late", "refused", "retried")


def main() -> None:
    """Measure, and write the file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    owned()  # before the first product, so that nodes round as devices do
    with tempfile.TemporaryDirectory(prefix="fedpers-many-") as folder:
        found = measure(Path(folder), args.devices, args.rounds)
    command = f"python benchmarks/many_devices.py --devices {args.devices} --rounds {args.rounds}"
    text = json.dumps({"machine": machine(), "command": command, **found}, indent=1)
    FILE.write_text(text + "\n", encoding="utf-8")
    print(text)


def measure(folder: Path, devices: int, rounds: int) -> dict[str, Any]:
    """One run of so many devices."""
    same = ["method=fedavg", "model=mlp", "seed=3", "eval_every=0", f"rounds={rounds}"]
    dealt = ["data=digits", f"data.num_clients={devices}", "data.partition=iid"]
    cfg = load([*same, *dealt, "engine.runner=loop"])
    files = deal(cfg.data, 3, folder / "data")
    link, out = Local(folder, devices, files=files, nodes=False), folder / "run"
    light_nodes.warm()
    nodes = light_nodes.start(f"127.0.0.1:{link.port}", files, folder)
    run = link.run(out, *same, "checkpoint_every=1", "engine.deadline_s=1800")
    try:
        peak = watched(link, nodes, run)
    finally:
        run.kill()
        light_nodes.stop(nodes)
        link.close()
    lines = [line for line in read(out / "metrics.csv") if line["split"] == "train"]
    seconds = [float(line["seconds"]) for line in lines]
    totals = {name: sum(int(line[name] or 0) for line in lines) for name in COUNTS}
    row = {"devices": devices, "rounds": len(lines), "seconds a round": sum(seconds) / len(seconds)}
    execute(cfg, folder / "inside")
    equal = clients_of(out) == clients_of(folder / "inside")
    row |= {f"MB {name}": size for name, size in peak.items()} | totals
    return {"rows": [row | {"clients.csv as in process": "equal" if equal else "differs"}]}


def watched(link: Local, nodes: list[int], run: "subprocess.Popen[bytes]") -> dict[str, float]:
    """The most memory of a node (on average), of SuperLink and server app, until the run ends."""
    peak = dict.fromkeys(("a node", "SuperLink", "server app"), 0.0)
    while run.poll() is None:
        sizes = {"a node": sum(map(proportional, nodes)) / len(nodes)}
        sizes |= {"SuperLink": sum(map(proportional, link.pids(SUPERLINK)))}
        sizes |= {"server app": sum(map(proportional, link.pids(SERVER_APP)))}
        peak = {name: max(size, sizes[name]) for name, size in peak.items()}
        time.sleep(5.0)
    return peak


def proportional(pid: int) -> float:
    """MB of a process, in which pages that n processes share count 1/n; 0 once it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def clients_of(out: Path) -> list[dict[str, str]]:
    """clients.csv without names, which only devices have."""
    return [{k: v for k, v in line.items() if k != "name"} for line in read(out / "clients.csv")]


def read(path: Path) -> list[dict[str, str]]:
    """The lines of a table."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    main()
