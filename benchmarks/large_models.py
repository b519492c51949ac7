"""Memory of a deployment's processes a byte of model, ours beside an app that is Flower's alone.

    python benchmarks/large_models.py            writes benchmarks/results/large_models.json
    python benchmarks/large_models.py --mb 1000 --only ours --rounds 2

Memory that is a process's own (RssAnon), at most, in a run of a large model, less that in the same run of a
small one, in models. The two apps do the same: FedAvg of two devices.
"""

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from device_link import NODE, RESIDENT, SERVER_APP, SUPERLINK, Local

from fedpers.bench.main import machine
from fedpers.deploy.submit import Link

FILE = Path(__file__).parent / "results" / "large_models.json"
DEVICES, SMALL_MB, LAYERS = 2, 1.0, 5
CLIENT_APP = "flwr-clientapp"
PARTS = {
    "server app": SERVER_APP,
    "device: our process that stays": RESIDENT,
    "device: Flower's process for a message": CLIENT_APP,
    "device: SuperNode": NODE,
    "SuperLink": SUPERLINK,
}
PLAIN_SERVER = """
import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid, context):
    side, rounds = int(context.run_config["side"]), int(context.run_config["rounds"])
    rng, count = np.random.default_rng(0), int(context.run_config["layers"])  # equal layers are sent once
    layers = [rng.standard_normal((side, side), np.float32) for _ in range(count)]
    start = ArrayRecord(layers)
    del layers
    two = {"min_train_nodes": 2, "min_evaluate_nodes": 2, "min_available_nodes": 2}
    FedAvg(**two).start(grid, start, num_rounds=rounds)
"""
PLAIN_CLIENT = """
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    layers = message.content["arrays"].to_numpy_ndarrays()
    for layer in layers:
        layer += 1.0
    content = {"arrays": ArrayRecord(layers), "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(content), reply_to=message)


@app.evaluate()
def evaluate(message, context):
    message.content["arrays"].to_numpy_ndarrays()
    content = {"metrics": MetricRecord({"num-examples": 1, "loss": 1.0})}
    return Message(RecordDict(content), reply_to=message)
"""
Runs = Callable[[Local, Path, int, int], "tuple[float, dict[str, float]]"]


def main() -> None:
    """Measure, and write the file if both were measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mb", type=float, default=160.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", choices=KINDS, help="one of the two, without the file")
    args = parser.parse_args()
    kinds = [args.only] if args.only else list(KINDS)
    found = {kind: measured(KINDS[kind], args.mb, args.rounds) for kind in kinds}
    rows = [{"process": part} | {kind: found[kind][part] for kind in kinds} for part in found[kinds[0]]]
    command = f"python benchmarks/large_models.py --mb {args.mb:g} --rounds {args.rounds}"
    text = json.dumps({"machine": machine(), "command": command, "rows": rows}, indent=1)
    print(text)
    if not args.only:
        FILE.write_text(text + "\n", encoding="utf-8")


def measured(run: Runs, mb: float, rounds: int) -> dict[str, float]:
    """Models at the peak of each process, and the seconds of the run."""
    (_, small), (seconds, large) = (one(run, size, rounds) for size in (SMALL_MB, mb))
    grown = {part: large[part] - small[part] for part in PARTS}
    models = {part: round(more / (mb - SMALL_MB), 2) for part, more in grown.items()}
    return models | {"seconds of the run": seconds}


def one(run: Runs, mb: float, rounds: int) -> tuple[float, dict[str, float]]:
    """(seconds of the run, peak MB of each process) with a model of `mb`."""
    with tempfile.TemporaryDirectory(prefix="fedpers-large-") as folder:
        link = Local(Path(folder), DEVICES)
        try:
            return run(link, Path(folder), side_of(mb), rounds)
        finally:
            link.close()


def side_of(mb: float) -> int:
    """The width of layers that have so many MB together."""
    return int((mb * 1e6 / 4 / LAYERS) ** 0.5)


def ours(link: Local, folder: Path, side: int, rounds: int) -> tuple[float, dict[str, float]]:
    """FedAvg of this package; its model has about the same size."""
    sizes = ",".join([str(side)] * (LAYERS + 1))
    terms = [f"model.hidden=[{sizes}]", f"rounds={rounds}", "eval_every=0", "checkpoint_every=1"]
    terms += ["engine.deadline_s=3000", "engine.retries=0", "method.local.batch_size=2000"]
    process = link.run(folder / "run", "method=fedavg", "model=mlp", *terms)
    try:
        peaks, began = Peaks(link), time.monotonic()
        if process.wait() != 0:
            raise RuntimeError(f"the run failed; see {folder}")
        return time.monotonic() - began, peaks.stop()
    finally:
        process.kill()


def flower(link: Local, folder: Path, side: int, rounds: int) -> tuple[float, dict[str, float]]:
    """Flower's FedAvg, with clients that add 1 to NumPy arrays."""
    app = folder / "app"
    app.mkdir()
    (app / "server.py").write_text(PLAIN_SERVER)
    (app / "client.py").write_text(PLAIN_CLIENT)
    (app / "pyproject.toml").write_text(
        '[project]\nname = "plain"\nversion = "1.0.0"\nlicense = "Apache-2.0"\ndependencies = []\n'
        '[tool.flwr.app]\npublisher = "plain"\n'
        '[tool.flwr.app.components]\nserverapp = "server:app"\nclientapp = "client:app"\n'
        f"[tool.flwr.app.config]\nside = {side}\nrounds = {rounds}\nlayers = {LAYERS}\n"
    )
    control = Link(folder / "home", f"127.0.0.1:{link.port}", None)
    peaks, began = Peaks(link), time.monotonic()
    run = control.submit(app)
    while not (status := control.status(run)).startswith("finished"):
        time.sleep(2.0)
    if status != "finished:completed":
        raise RuntimeError(f"the run ended as {status}; see {folder}")
    return time.monotonic() - began, peaks.stop()


KINDS: dict[str, Runs] = {"ours": ours, "flower": flower}


class Peaks:
    """The most memory of any process of each kind, looked at while a thread runs."""

    def __init__(self, link: Local) -> None:
        self.link, self.found, self._ended = link, dict.fromkeys(PARTS, 0.0), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        """Which processes there are is looked for each second, how large they are twenty times."""
        while not self._ended.is_set():
            pids = [(part, pid) for part, word in PARTS.items() for pid in self.link.pids(word)]
            until = time.monotonic() + 1.0
            while time.monotonic() < until and not self._ended.wait(0.05):
                for part, pid in pids:
                    self.found[part] = max(self.found[part], own(pid))

    def stop(self) -> dict[str, float]:
        """What was found, in MB."""
        self._ended.set()
        self._thread.join()
        return self.found


def own(pid: int) -> float:
    """MB of memory that is a process's own, no file's; 0 once it has ended."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return sum(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("RssAnon:"))
    return 0.0


if __name__ == "__main__":
    main()
