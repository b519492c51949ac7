"""Memory over many rounds on devices that fail now and then: it must not grow.

python benchmarks/soak.py --rounds 200
"""

import argparse
import contextlib
import csv
import json
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from device_link import NODE, RESIDENT, SERVER_APP, SUPERLINK, Local, megabytes

from fedpers.bench.main import machine
from fedpers.results import checkpoint

FILE = Path(__file__).parent / "results" / "soak.json"
WATCHED = {
    "server app": SERVER_APP,
    "SuperLink": SUPERLINK,
    "SuperNodes": NODE,
    "our processes on devices": RESIDENT,
}
Samples = dict[str, list[tuple[int, float]]]


def main() -> None:
    """Run and write the file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--devices", type=int, default=3)
    parser.add_argument("--limit-s", type=float, default=3600.0, help="stop after this time")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedpers-soak-") as folder:
        samples, failed, out_of = soak(Path(folder), asked.rounds, asked.devices, asked.limit_s)
    last = max(t for found in samples.values() for t, _ in found)
    options = f"--rounds {asked.rounds} --devices {asked.devices} --limit-s {asked.limit_s:.0f}"
    command = f"python benchmarks/soak.py {options}"
    found: dict[str, Any] = {
        "machine": machine(),
        "command": command,
        "devices": asked.devices,
        "rounds": last,
    }
    found |= {"trainings": out_of, "failed": failed, "rows": [row(n, s, last) for n, s in samples.items()]}
    FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(FILE.read_text(encoding="utf-8"))


def row(name: str, samples: list[tuple[int, float]], last: int) -> dict[str, Any]:
    """Memory in the middle and at the end, and what a round of the second half added."""
    late = np.array([s for s in samples if s[0] >= last / 2])
    slope = np.polyfit(late[:, 0], late[:, 1], 1)[0]
    ends = late[late[:, 0] <= last * 0.55], late[late[:, 0] >= last * 0.95]
    middle, end = (float(np.median(part[:, 1])) for part in ends)
    heads = ("MB in the middle", "MB at the end", "kB a round in between")
    return {"process": name} | dict(zip(heads, (middle, end, float(slope) * 1024), strict=True))


def soak(folder: Path, rounds: int, devices: int, limit_s: float) -> tuple[Samples, int, int]:
    """(MB of each kind of process by round, trainings that failed, trainings)."""
    link, out = Local(folder, devices, "soak_data:load"), folder / "run"
    terms = ["failures=skip", "engine.min_replies=1", "engine.retries=1"]
    run = link.run(
        out, "method=pflego", "model=mlp", f"rounds={rounds}", "eval_every=0", "checkpoint_every=1", *terms
    )
    samples: Samples = defaultdict(list)
    until = time.monotonic() + limit_s
    try:
        while run.poll() is None and time.monotonic() < until:
            t = checkpoint.last_round(out) or 0
            if t and t < rounds:
                for name, word in WATCHED.items():
                    with contextlib.suppress(OSError):  # it ended while it was looked at
                        samples[name].append((t, megabytes(link.pids(word))))
            time.sleep(5.0)
        with (out / "metrics.csv").open(newline="") as file:
            lines = list(csv.DictReader(file))
    finally:
        run.kill()
        link.close()
    return samples, *(sum(int(line[c] or 0) for line in lines) for c in ("refused", "asked"))


if __name__ == "__main__":
    main()
