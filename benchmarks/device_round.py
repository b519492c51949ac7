"""CPU that a device spends on a round: ours, and Flower's, which starts a process for each message.

python benchmarks/device_round.py
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from device_link import NODE, RESIDENT, Local, cpu_seconds

from fedpers.bench.main import machine
from fedpers.results import checkpoint

DEVICES, WARM, ROUNDS = 3, 2, 12
FILE = Path(__file__).parent / "results" / "device_round.json"
THIN = "import fedpers.deploy.device"  # all that our client app loads
FLOWER = "from flwr.app import Message; from flwr.clientapp import ClientApp"


def main() -> None:
    """Measure and write the file."""
    with tempfile.TemporaryDirectory(prefix="fedpers-bench-") as folder:
        rounds, ours, flower = measure(Path(folder))
    rows = [
        ("our process that stays: training, state, answer", ours / rounds / DEVICES),
        ("SuperNode, SuperExec and the process that they start a message", flower / rounds / DEVICES),
        ("of that: Python and Flower's API", import_seconds(FLOWER)),
        ("the same and our client app", import_seconds(THIN)),
    ]
    found = {
        "machine": machine(),
        "command": "python benchmarks/device_round.py",
        "devices": DEVICES,
        "rounds": rounds,
    }
    found["rows"] = [{"part of a device's round": what, "CPU seconds": seconds} for what, seconds in rows]
    FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(FILE.read_text(encoding="utf-8"))


def measure(folder: Path) -> tuple[int, float, float]:
    """(rounds, CPU seconds of our processes, of Flower's) of all devices."""
    link, out = Local(folder, DEVICES), folder / "run"
    options = ["method=pflego", "model=mlp", f"rounds={WARM + ROUNDS}", "eval_every=0", "checkpoint_every=1"]
    run = link.run(out, *options)
    try:
        first = wait_for(out, WARM, run)
        before = costs(link)
        last = wait_for(out, WARM + ROUNDS - 2, run)
        after = costs(link)
    finally:
        run.kill()
        link.close()
    return last - first, after[0] - before[0], after[1] - before[1]


def wait_for(out: Path, t: int, run: "subprocess.Popen[bytes]") -> int:
    """The round of the newest checkpoint, once it is at least t."""
    while (done := checkpoint.last_round(out) or 0) < t:
        if run.poll() is not None:
            raise RuntimeError(f"the run ended in round {done}")
        time.sleep(0.1)
    return done


def costs(link: Local) -> tuple[float, float]:
    """CPU seconds so far of our processes on the devices, and of Flower's."""
    nodes = link.pids(NODE)
    supers = [pid for pid in link.pids("flower-superexec") if parent(pid) in nodes]
    return cpu_seconds(link.pids(RESIDENT)), cpu_seconds([*nodes, *supers])


def parent(pid: int) -> int:
    """The process that started `pid`."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def import_seconds(statement: str, times: int = 5) -> float:
    """CPU seconds of a Python process with one statement: the least of some."""
    found = []
    for _ in range(times):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", statement], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(found)


if __name__ == "__main__":
    main()
