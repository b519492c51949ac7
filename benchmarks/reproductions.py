"""Our methods beside PFLlib's of the same name: the same samples, layers, rates and rounds, both run here.

Twenty clients share 6,000 pictures of Fashion-MNIST by Dirichlet's law (0.1); 30 rounds in which everybody
trains for an epoch. Accuracy in % on all test samples after the last round, over seeds; each library draws
its own start. Rows that the file already has are kept: what was killed goes on.

    python -m benchmarks.reproductions --pflib CHECKOUT [--seeds 0 1 2] [--only ditto ...]
"""

import argparse
import json
import logging
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import fedpers
from fedpers.bench.checkouts import MAIN, START, PFLlib
from fedpers.bench.main import keep
from fedpers.clients.fedala import FedALAClient, mix
from fedpers.config import compose
from fedpers.core.data import Federation
from fedpers.datasets.federation import load_federation
from fedpers.results.report.tables import spread
from fedpers.strategies.fedala import FedALA

MODEL = """
models.DNN = lambda *sizes, **classes: nn.Sequential(OrderedDict([
    ("flat", nn.Flatten()), ("fc1", nn.Linear(784, 100)), ("relu", nn.ReLU()), ("fc", nn.Linear(100, 10))]))
"""  # their own DNN, divided into body and head, has its log-softmax between the two
FILE = Path(__file__).parent / "results" / "reproductions.json"
ROUNDS, RATE, BATCH, CLIENTS = 30, 0.05, 10, 20
DATA = {
    "name": "fashion_mnist",
    "partition": "dirichlet",
    "alpha": 0.1,
    "num_clients": CLIENTS,
    "min_size": 20,
    "limit": 6000,
    "valid_fraction": 0.0,
}
MIXED = "fedala, evaluated before training"
# by our name: PFLlib's words, and ours for the same hyper-parameters
METHODS: dict[str, tuple[list[str], list[str]]] = {
    "local": (["Local"], []),
    "fedavg": (["FedAvg"], []),
    "fedprox": (["FedProx", "-mu", "0.1"], ["method.mu=0.1"]),
    "fedper": (["FedPer"], []),
    "fedrep": (["FedRep", "-pls", "1"], ["method.head.epochs=1"]),
    "lgfedavg": (["LG-FedAvg"], []),
    "ditto": (["Ditto", "-mu", "0.1", "-pls", "1"], ["method.lam=0.1"]),
    "fedproto": (["FedProto", "-lam", "1"], ["method.lam=1"]),
    "fedala": (["FedALA", "-et", "1", "-s", "80", "-p", "2"], ["method.share=0.8"]),
    MIXED: (["FedALA", "-et", "1", "-s", "80", "-p", "2"], ["method.share=0.8"]),
    "fedrod": (["FedROD"], []),
    "moon": (["MOON", "-mu", "1", "-tau", "0.5"], ["method.mu=1", "method.tau=0.5"]),
    "scaffold": (["SCAFFOLD", "-slr", "1"], []),
    "feddbe": (["FedDBE", "-klw", "0.1", "-mo", "0.1"], ["method.kappa=0.1", "method.mu=0.1"]),
    "gpfl": (["GPFL", "-lam", "0.01", "-mu", "0"], ["method.lam=0.01"]),
    "fedas": (["FedAS"], []),
    "fedpac": (["FedPAC", "-lam", "1", "-pls", "1"], ["method.lam=1"]),
}
BEFORE = """
import torch
from fedpers.core.torchvision import import_torchvision
import_torchvision()
seed = torch.manual_seed
torch.manual_seed = lambda _: seed({})
"""  # their main file always sets 0
SAYS = re.compile(r"Averaged Test Accuracy: ([\d.]+)")


@contextmanager
def evaluated_before_training() -> Iterator[None]:
    """FedALA as PFLlib evaluates it: what a client mixed, before it trains on."""

    def mixture(self: FedALAClient, shared: Any, state: Any) -> Any:
        return mix(state.own, shared.params, state.W)

    with (
        patch.object(FedALA, "evaluation_message", lambda self, s, k: s),
        patch.object(FedALAClient, "personal", mixture),
    ):
        yield


def ours(name: str, federation: Federation, seed: int) -> float:
    """The accuracy of our method."""
    words = [*METHODS[name][1], "model=mlp", "model.hidden=[100]"]
    settings = {"rounds": ROUNDS, "eval_every": ROUNDS, "data": federation, "seeds": [seed]}
    as_theirs = evaluated_before_training() if name == MIXED else nullcontext()
    with tempfile.TemporaryDirectory() as folder, as_theirs:
        run = fedpers.run(name.partition(",")[0], *words, out=f"{folder}/run", **settings)
        return float(100 * run.summaries[0]["final"]["accuracy"])


def in_whole_batches(federation: Federation) -> Federation:
    """Training samples up to a multiple of the batch: PFLlib leaves out what is less than one."""
    clients = [federation.client(k) for k in range(federation.num_clients)]
    sizes = [len(c.train) // BATCH * BATCH for c in clients]
    return Federation.from_arrays(
        [
            {"train": (c.train.x[:n], c.train.y[:n]), "test": (c.test.x, c.test.y)}
            for c, n in zip(clients, sizes, strict=True)
        ],
        valid_fraction=0.0,
    )


def write(federation: Federation, folder: Path) -> None:
    """The samples as PFLlib reads them: an archive a client, with a dict of x and y."""
    for split in ("train", "test"):
        (folder / split).mkdir(parents=True)
        for k in range(federation.num_clients):
            part = getattr(federation.client(k), split)
            held: Any = {"x": part.x.numpy(), "y": part.y.numpy()}
            np.savez(folder / split / f"{k}.npz", data=held)


def theirs(name: str, checkout: Path, folder: Path, seed: int) -> float:
    """The accuracy that PFLlib says after as many averages."""
    words = {
        "-data": PFLlib.data,
        "-m": "DNN",
        "-nc": CLIENTS,
        "-gr": ROUNDS,
        "-ls": 1,
        "-lbs": BATCH,
        "-lr": RATE,
        "-eg": ROUNDS,
        "-dev": "cpu",
        "-fd": 100,
    }
    options = [str(word) for pair in words.items() for word in pair]
    algorithm, *more = METHODS[name][0]
    command = [sys.executable, "-c", BEFORE.format(seed) + START + MODEL + MAIN, str(checkout / PFLlib.main)]
    command += [*options, "-algo", algorithm, *more]
    done = subprocess.run(command, cwd=folder / "system", capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return 100 * float(SAYS.findall(done.stdout)[-1])


def main() -> None:
    """Measure what the file lacks, and write it after each pair."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pflib", required=True, type=Path)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--only", nargs="*", default=list(METHODS))
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    logging.getLogger("fedpers").setLevel(logging.ERROR)
    words = [f"data.{key}={value}" for key, value in DATA.items() if key != "name"]
    cfg = compose.load([f"data={DATA['name']}", *words])
    federation = in_whole_batches(load_federation(cfg.data, seed=0))
    rows = json.loads(FILE.read_text(encoding="utf-8"))["rows"] if FILE.exists() else []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "system").mkdir()
        write(federation, folder / "dataset" / PFLlib.data)
        for method in [m for m in given.only if m not in [row["method"] for row in rows]]:
            mine = [ours(method, federation, seed) for seed in given.seeds]
            other = [theirs(method, given.pflib.resolve(), folder, seed) for seed in given.seeds]
            rows.append(row_of(method, mine, other))
            print(rows[-1], flush=True)
            keep(rows, "python -m benchmarks.reproductions --pflib CHECKOUT", FILE)


def row_of(method: str, mine: list[float], other: list[float]) -> dict[str, Any]:
    """What the table shows of a method."""
    return {
        "method": method,
        "seeds": len(mine),
        "ours": spread(mine),
        "PFLlib": spread(other),
        "difference": round(statistics.mean(mine) - statistics.mean(other), 2),
        "ours by seed": " ".join(f"{v:.2f}" for v in mine),
        "PFLlib by seed": " ".join(f"{v:.2f}" for v in other),
    }


if __name__ == "__main__":
    main()
