"""Our methods beside those of the same name in PFLlib and HtFLlib: same samples, layers, rates and rounds.

Twenty clients share 6,000 pictures of Fashion-MNIST by Dirichlet's law (0.1); 30 rounds in which everybody
trains for an epoch. Accuracy in % on all test samples after the last round, over seeds; each library draws
its own start. Rows that the file already has are kept: what was killed goes on, and two may share the work.

    python -m benchmarks.reproductions --pflib CHECKOUT --htfllib CHECKOUT [--seeds 0 1 2] [--only ditto ...]
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
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fedpers
from benchmarks.as_theirs import global_model, mixed_model, nearest_prototype
from fedpers.bench.checkouts import MAIN, READ_ONCE, START, PFLlib
from fedpers.bench.main import keep
from fedpers.config import compose
from fedpers.core.data import Federation
from fedpers.datasets.federation import load_federation
from fedpers.results.report.tables import spread

NETWORK = """
made = lambda *sizes, **classes: nn.Sequential(OrderedDict([
    ("flat", nn.Flatten()), ("fc1", nn.Linear(784, 100)), ("relu", nn.ReLU()), ("fc", nn.Linear(100, 10))]))
"""
IN_PFLLIB = """
from flcore.servers.serverbase import Server
models.DNN = made
Server.avg_generalization_metrics = lambda server: None
"""  # their own DNN, divided, has its log-softmax between body and head; FedAS ends with what nobody defines
IN_HTFLLIB = """
import torch, types
models.AmazonMLP = made
torch.load = functools.partial(torch.load, weights_only=False)
for generator in ("stylegan_xl", "stylegan_3", "stable_diffusion"):
    sys.modules["flcore.servers.serverktl_" + generator] = types.SimpleNamespace(FedKTL=None)
"""  # they keep whole models in files; of the generators of images that they import, they have a part
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


@dataclass(frozen=True)
class Row:
    """What is run of each library."""

    theirs: str  # the algorithm, and options for it
    ours: str = ""  # settings for the same hyper-parameters
    as_theirs: Callable[[], AbstractContextManager[None]] = nullcontext  # changes one of our definitions
    htfllib: bool = False  # run by HtFLlib, not by PFLlib


ALA = "FedALA -et 1 -s 80 -p 2", "method.share=0.8"
PROTO = "FedProto -lam 1", "method.lam=1"
BABU = f"FedBABU -fte 5 -gr {ROUNDS - 1}"  # they go on from a training
FOMO = "FedFomo -M 5", "method.num_neighbours=4 method.epsilon=0 method.valid_fraction=0.2"  # M has the own
PFEDME = "pFedMe -bt 1 -lam 15 -K 5 -lrp 0.05", "method.lam=15 method.K=5 method.eta=0.05"
TGP = "FedTGP -lam 10 -se 100 -mart 100", "method.lam=10 method.tau=100 method.server_lr=0.05"
METHODS = {
    "local": Row("Local"),
    "fedavg": Row("FedAvg"),
    "fedprox": Row("FedProx -mu 0.1", "method.mu=0.1"),
    "fedper": Row("FedPer"),
    "fedrep": Row("FedRep -pls 1", "method.head.epochs=1"),
    "lgfedavg": Row("LG-FedAvg"),
    "ditto": Row("Ditto -mu 0.1 -pls 1", "method.lam=0.1"),
    "fedproto": Row(*PROTO),
    "fedproto, nearest prototype": Row(*PROTO, nearest_prototype),
    "fedala": Row(*ALA),
    "fedala, evaluated before training": Row(*ALA, mixed_model),
    "fedrod": Row("FedROD"),
    "moon": Row("MOON -mu 1 -tau 0.5", "method.mu=1 method.tau=0.5"),
    "scaffold": Row("SCAFFOLD -slr 1"),
    "feddbe": Row("FedDBE -klw 0.1 -mo 0.1", "method.kappa=0.1 method.mu=0.1"),
    "gpfl": Row("GPFL -lam 0.01 -mu 0", "method.lam=0.0316"),  # theirs is one norm of a batch: times its root
    "fedas": Row("FedAS"),
    "fedpac": Row("FedPAC -lam 1", "method.lam=1"),
    "fedcp": Row("FedCP -lam 1", "method.lam=1"),
    "fedbabu": Row(BABU, "method.finetune_epochs=5"),
    "fedfomo": Row(*FOMO),
    "perfedavg": Row("PerAvg", "method.alpha=0.05"),
    "pfedme": Row(*PFEDME),
    "pfedme, the global model": Row(*PFEDME, global_model),
    "fedtgp (HtFLlib)": Row(*TGP, htfllib=True),
    "fedtgp (HtFLlib), nearest prototype": Row(*TGP, nearest_prototype, htfllib=True),
}
BEFORE = """
import torch
from fedpers.core.torchvision import import_torchvision
import_torchvision()
seed = torch.manual_seed
torch.manual_seed = lambda _: seed({})
"""  # their main file always sets 0
SAYS = re.compile(r"Averaged? Test Accuracy: ([\d.]+)")


def method_of(name: str) -> str:
    """Our name of a row's method."""
    return re.split("[, ]", name)[0]


def ours(name: str, federation: Federation, seed: int) -> float:
    """The accuracy of our method."""
    row = METHODS[name]
    words = [*row.ours.split(), "model=mlp", "model.hidden=[100]"]
    settings = {"rounds": ROUNDS, "eval_every": ROUNDS, "data": federation, "seeds": [seed]}
    with tempfile.TemporaryDirectory() as folder, row.as_theirs():
        run = fedpers.run(method_of(name), *words, out=f"{folder}/run", **settings)
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
    """The samples as PFLlib and HtFLlib read them."""
    for split in ("train", "test"):
        for k in range(federation.num_clients):
            part = getattr(federation.client(k), split)
            PFLlib().write(folder, split, k, part.x.numpy(), part.y.numpy())


def theirs(name: str, checkouts: dict[bool, Path], folder: Path, seed: int) -> float:
    """The accuracy that their library says after as many averages."""
    row = METHODS[name]
    algorithm, *more = row.theirs.split()
    given = {"-m": "MLPs" if row.htfllib else "DNN", "-algo": algorithm, "-nc": CLIENTS, "-fd": 100}
    given |= {"-gr": ROUNDS, "-eg": ROUNDS, "-ls": 1, "-lbs": BATCH, "-lr": RATE}
    code = (
        BEFORE.format(seed) + START + READ_ONCE + NETWORK + (IN_HTFLLIB if row.htfllib else IN_PFLLIB) + MAIN
    )
    command = [sys.executable, *PFLlib().words(checkouts[row.htfllib], code, given), *more]
    done = subprocess.run(command, cwd=folder / "system", capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return 100 * float(SAYS.findall(done.stdout)[-1])


def main() -> None:
    """Measure what the file lacks, and write it after each pair."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pflib", required=True, type=Path)
    parser.add_argument("--htfllib", required=True, type=Path)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--only", nargs="*", default=list(METHODS))
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    logging.getLogger("fedpers").setLevel(logging.ERROR)
    words = [f"data.{key}={value}" for key, value in DATA.items() if key != "name"]
    cfg = compose.load([f"data={DATA['name']}", *words])
    federation = in_whole_batches(load_federation(cfg.data, seed=0))
    checkouts = {False: given.pflib.resolve(), True: given.htfllib.resolve()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "system").mkdir()
        write(federation, folder)
        for method in given.only:
            if method in [row["method"] for row in rows_so_far()]:
                continue
            mine = [ours(method, federation, seed) for seed in given.seeds]
            other = measured(method, len(given.seeds))
            other = other or [theirs(method, checkouts, folder, seed) for seed in given.seeds]
            new = row_of(method, mine, other)
            print(new, flush=True)
            order = list(METHODS)
            rows = sorted([*rows_so_far(), new], key=lambda row: order.index(row["method"]))
            keep(rows, "python -m benchmarks.reproductions --pflib CHECKOUT --htfllib CHECKOUT", FILE)


def rows_so_far() -> list[dict[str, Any]]:
    """The file's, of this run and of others."""
    return json.loads(FILE.read_text(encoding="utf-8"))["rows"] if FILE.exists() else []


def measured(method: str, seeds: int) -> list[float]:
    """Their accuracies from a row of as many runs with the same words; none where there is no such row."""
    for row in rows_so_far():
        if METHODS[row["method"]].theirs == METHODS[method].theirs and row["seeds"] == seeds:
            return [float(v) for v in row["theirs by seed"].split()]
    return []


def row_of(method: str, mine: list[float], other: list[float]) -> dict[str, Any]:
    """What the table shows of a method."""
    return {
        "method": method,
        "seeds": len(mine),
        "ours": spread(mine),
        "theirs": spread(other),
        "difference": round(statistics.mean(mine) - statistics.mean(other), 2),
        "ours by seed": " ".join(f"{v:.2f}" for v in mine),
        "theirs by seed": " ".join(f"{v:.2f}" for v in other),
    }


if __name__ == "__main__":
    main()
