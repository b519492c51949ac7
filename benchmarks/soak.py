"""Memory over many rounds on devices that fail now and then: it must not grow.

python benchmarks/soak.py --rounds 200

Each process's own memory (RssAnon) is sampled: pages of libraries come and go with what else the machine
does. Samples go to soak.csv in --folder as they are taken, so that a run that is cut off is not lost:
`--read FOLDER` makes the result of what lies there.
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
from device_link import FOLLOWER, NODE, RESIDENT, SERVER_APP, SUPEREXEC, SUPERLINK, Local, megabytes

from fedpers.bench.main import machine
from fedpers.results import checkpoint

FILE = Path(__file__).parent / "results" / "soak.json"
WATCHED = {
    "server app": SERVER_APP,
    "fedpers run": FOLLOWER,
    "SuperLink": SUPERLINK,
    "SuperNodes": NODE,
    "SuperExecs": SUPEREXEC,
    "our processes on devices": RESIDENT,
}
SAMPLES, ABOUT = "soak.csv", "soak.json"
Samples = dict[str, list[tuple[int, float]]]


def main() -> None:
    """Run, or read what a run left, and write the file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--devices", type=int, default=3)
    parser.add_argument("--limit-s", type=float, default=3600.0, help="stop after this time")
    parser.add_argument("--folder", type=Path, help="keep everything there; default: a temporary one")
    parser.add_argument("--read", type=Path, help="run nothing; the folder of a run")
    asked = parser.parse_args()
    if asked.read is not None:
        found = summary(asked.read)
    else:
        with contextlib.ExitStack() as stack:
            made = tempfile.TemporaryDirectory(prefix="fedpers-soak-")
            folder = asked.folder or Path(stack.enter_context(made))
            soak(folder, asked.rounds, asked.devices, asked.limit_s)
            found = summary(folder)
    FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(FILE.read_text(encoding="utf-8"))


def soak(folder: Path, rounds: int, devices: int, limit_s: float) -> None:
    """Run, and write samples of each kind of process's memory."""
    folder.mkdir(parents=True, exist_ok=True)
    command = f"python benchmarks/soak.py --rounds {rounds} --devices {devices} --limit-s {limit_s:.0f}"
    about = {"machine": machine(), "command": command, "devices": devices}
    (folder / ABOUT).write_text(json.dumps(about), encoding="utf-8")
    link, out = Local(folder, devices, "soak_data:load"), folder / "run"
    terms = ["failures=skip", "engine.min_replies=1", "engine.retries=1"]
    run = link.run(
        out, "method=pflego", "model=mlp", f"rounds={rounds}", "eval_every=0", "checkpoint_every=1", *terms
    )
    until = time.monotonic() + limit_s
    try:
        with (folder / SAMPLES).open("w", newline="", encoding="utf-8", buffering=1) as file:
            while run.poll() is None and time.monotonic() < until:
                t = checkpoint.last_round(out) or 0
                if t and t < rounds:
                    csv.writer(file).writerows(_sample(link, t))
                time.sleep(5.0)
    finally:
        run.kill()
        link.close()


def _sample(link: Local, t: int) -> list[tuple[int, str, float]]:
    found = []
    for name, word in WATCHED.items():
        with contextlib.suppress(OSError):  # it ended while it was looked at
            found.append((t, name, megabytes(link.pids(word))))
    size = sum(p.stat().st_size for p in link.folder.glob("link.db*")) / 2**20
    return [*found, (t, "SuperLink's database on disk", size)]


def summary(folder: Path) -> dict[str, Any]:
    """The result of a run's folder, whether it came to its end or not."""
    samples: Samples = defaultdict(list)
    with (folder / SAMPLES).open(newline="", encoding="utf-8") as file:
        for t, name, size in csv.reader(file):
            samples[name].append((int(t), float(size)))
    with (folder / "run" / "metrics.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    failed, asked = (sum(int(line[c] or 0) for line in lines) for c in ("refused", "asked"))
    last = max(t for found in samples.values() for t, _ in found)
    rows = [row(name, found, last) for name, found in samples.items()]
    about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    return {**about, "rounds": last, "trainings": asked, "failed": failed, "rows": rows}


def row(name: str, samples: list[tuple[int, float]], last: int) -> dict[str, Any]:
    """Memory at the end, and what a round of each quarter added: a leak adds in all of them."""
    found: dict[str, Any] = {"process": name}
    found["MB at the end"] = float(np.median([mb for t, mb in samples if t >= 0.95 * last]))
    for quarter, title in enumerate(("1st", "2nd", "3rd", "4th")):
        part = np.array([s for s in samples if quarter / 4 <= s[0] / last <= (quarter + 1) / 4])
        slope = float(np.polyfit(part[:, 0], part[:, 1], 1)[0]) * 1024 if len(part) > 2 else float("nan")
        found[f"kB a round, {title} quarter"] = round(slope, 1)
    return found


if __name__ == "__main__":
    main()
