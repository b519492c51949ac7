"""Other libraries, run from a checkout that the user names: their options and data format for our work.

Each runs as its users run it, in a temporary folder that holds the samples in its format; nothing is
written to the checkout.
"""

import json
import pickle
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from fedpers.bench.work import LR, Work, arrays

START = """
import functools, os, runpy, sys
from collections import OrderedDict
main = sys.argv.pop(1)
sys.path.insert(0, os.path.dirname(main))
from flcore.trainmodel import models
from torch import nn
from utils import data_utils
"""  # before PFLlib's own main file
READ_ONCE = "data_utils.read_client_data = functools.cache(data_utils.read_client_data)\n"
LENET = """
half = lambda i: [(f"relu{i}", nn.ReLU()), (f"pool{i}", nn.MaxPool2d(2))]
models.FedAvgCNN = lambda **sizes: nn.Sequential(OrderedDict([
    ("conv1", nn.Conv2d(1, 6, 5)), *half(1), ("conv2", nn.Conv2d(6, 16, 5)), *half(2), ("flat", nn.Flatten()),
    ("fc1", nn.Linear(256, 120)), ("relu3", nn.ReLU()), ("fc2", nn.Linear(120, 84)), ("relu4", nn.ReLU()),
    ("fc", nn.Linear(84, 10))]))
"""  # in place of their CNN: their own LeNet normalises and drops out
MAIN = 'runpy.run_path(main, run_name="__main__")\n'
Names = dict[str, list[str]]  # by our name: theirs, with options where their defaults are another method


class Checkout(Protocol):
    """The interface of a library for the suite."""

    main: ClassVar[str]  # a file that each checkout has
    models: ClassVar[dict[str, str]]  # by our name: theirs of the same layers
    methods: ClassVar[Names]

    def prepare(self, checkout: Path, folder: Path, work: Work) -> Path:
        """Write the samples into `folder`; returns where the command is to be run."""

    def command(self, checkout: Path, name: str, model: str, work: Work) -> list[str]:
        """The words after `python` of the command that trains a method on a model."""

    def times(self, text: str) -> list[float]:
        """The seconds of each round, read from a process's output."""


@dataclass(frozen=True)
class PFLlib:
    """https://github.com/TsingZ0/PFLlib, which reads a client's file each time that it trains."""

    in_ram: bool = False  # read each file once: what is left if it kept its data
    main: ClassVar[str] = "system/main.py"
    models: ClassVar[dict[str, str]] = {"logistic": "MLR", "mlp": "DNN", "lenet": "CNN", "cnn": "CNN"}
    methods: ClassVar[Names] = {
        "fedavg": ["FedAvg"],
        "fedprox": ["FedProx", "-mu", "0.1"],
        "fedper": ["FedPer"],
        "fedrep": ["FedRep"],
        "fedbabu": ["FedBABU"],
        "lgfedavg": ["LG-FedAvg"],
        "ditto": ["Ditto", "-mu", "0.1"],
        "fedfomo": ["FedFomo"],
        "perfedavg": ["PerAvg"],
        "pfedme": ["pFedMe"],
        "apfl": ["APFL"],
    }
    data: ClassVar = "fedpers-MNIST"  # their models read the inputs' size from the data's name
    says: ClassVar = "time cost"  # their line for a round, which ends with its seconds

    def prepare(self, checkout: Path, folder: Path, work: Work) -> Path:
        """An archive a client, with a pickled dict of x [n, 1, 28, 28] and y [n]; they read ../dataset."""
        x, y = arrays(work)
        for split, size in (("train", work.n), ("test", work.n // 10)):
            for k in range(work.M):
                self.write(folder, split, k, np.array(x[k, :size]), y[k, :size])
        (folder / "system").mkdir()
        return folder / "system"

    def write(self, folder: Path, split: str, k: int, x: np.ndarray, y: np.ndarray) -> None:
        """The archive of client k: x [n, 1, 28, 28] and y [n] of `split`, train or test."""
        here = folder / "dataset" / self.data / split
        here.mkdir(parents=True, exist_ok=True)
        held: Any = {"x": x, "y": y}
        np.savez(here / f"{k}.npz", data=held)

    def command(self, checkout: Path, name: str, model: str, work: Work) -> list[str]:
        """Rounds are counted from 0, and the first one evaluates."""
        algorithm, *more = self.methods[name]
        given = {"-m": self.models[model], "-algo": algorithm, "-nc": work.M, "-jr": work.C / work.M}
        given |= {"-gr": work.rounds, "-ls": work.E, "-lbs": work.B, "-lr": LR, "-eg": work.rounds + 1}
        changes = READ_ONCE * self.in_ram + LENET * (model == "lenet")
        return [*self.words(checkout, START + changes + MAIN if changes else "", given), *more]

    def words(self, checkout: Path, code: str, given: dict[str, Any]) -> list[str]:
        """The words after `python` that run its main file, or `code` around it, with `given` options."""
        options = {"-data": self.data, "-dev": "cpu"} | given
        start = [*(("-c", code) if code else ()), str(checkout / self.main)]
        return [*start, *(str(word) for pair in options.items() for word in pair)]

    def times(self, text: str) -> list[float]:
        """Of the rounds after the first."""
        lines = [line for line in text.splitlines() if self.says in line and line[:1] == "-"]
        return [float(line.split()[-1]) for line in lines][1:]


class FLBench:
    """https://github.com/KarhouTam/FL-bench, which keeps its data in RAM, and says the mean of all rounds."""

    main: ClassVar[str] = "src/server/fedavg.py"
    models: ClassVar[dict[str, str]] = {"mlp-200-200": "2nn", "cnn": "avgcnn"}
    methods: ClassVar[Names] = {
        "fedavg": ["fedavg"],
        "fedprox": ["fedprox", "fedprox.mu=0.1"],
        "fedper": ["fedper"],
        "fedrep": ["fedrep"],
        "fedbabu": ["fedbabu"],
        "lgfedavg": ["lgfedavg"],
        "ditto": ["ditto", "+ditto.lamda=0.1"],
        "fedfomo": ["fedfomo"],
        "perfedavg": ["perfedavg"],
        "pfedme": ["pfedme"],
        "apfl": ["apfl"],
        "fedem": ["fedem"],
        "cfl": ["cfl"],
    }

    def prepare(self, checkout: Path, folder: Path, work: Work) -> Path:
        """A copy of its code, where it reads and writes: our samples as MNIST's files, and who has which."""
        here = folder / "fl-bench"
        for part in ("config", "data/utils", "src"):
            shutil.copytree(checkout / part, here / part)
        shutil.copy(checkout / "main.py", here)
        raw = here / "data" / "mnist" / "MNIST" / "raw"
        raw.mkdir(parents=True)
        x, y = arrays(work)
        pixels = np.clip(x.reshape(-1, 28, 28) * 32 + 128, 0, 255).astype(np.uint8)
        for split, n in (("train", len(pixels)), ("t10k", 2)):  # they squeeze a single one away
            _write_idx(raw / f"{split}-images-idx3-ubyte", pixels[:n])
            _write_idx(raw / f"{split}-labels-idx1-ubyte", y.reshape(-1)[:n].astype(np.uint8))
        rows = np.arange(work.M * work.n).reshape(work.M, work.n).tolist()
        everybody = list(range(work.M))
        partition = {
            "separation": {"train": everybody, "val": [], "test": everybody, "total": work.M},
            "data_indices": [{"train": r, "val": [], "test": r[: work.n // 10]} for r in rows],
        }
        (here / "data" / "mnist" / "partition.pkl").write_bytes(pickle.dumps(partition))
        about = {"split": "sample", "monitor_window_name_suffix": ""}
        (here / "data" / "mnist" / "args.json").write_text(json.dumps(about))
        return here

    def command(self, checkout: Path, name: str, model: str, work: Work) -> list[str]:
        """Without evaluations, logs and pictures."""
        algorithm, *more = self.methods[name]
        common = {
            "join_ratio": work.C / work.M,
            "global_epoch": work.rounds,
            "local_epoch": work.E,
            "batch_size": work.B,
            "client_side_evaluation": "false",
            "test.client.interval": -1,
            "use_cuda": "false",
            "verbose_gap": 10**9,
            "save_log": "false",
            "save_learning_curve_plot": "false",
            "save_metrics": "false",
        }
        given = {"method": algorithm, "dataset.name": "mnist", "model.name": self.models[model]}
        given |= {"optimizer.lr": str(LR)} | {f"common.{key}": str(value) for key, value in common.items()}
        return ["main.py", *(f"{key}={value}" for key, value in given.items()), *more]

    def times(self, text: str) -> list[float]:
        """The mean of all rounds, in hundredths of a second."""
        found = re.search(r"time taken by each global\s+epoch:\s+(\d+)\s+min\s+([\d.]+)\s+sec", text)
        return [60 * int(found[1]) + float(found[2])] if found else []


def _write_idx(path: Path, values: np.ndarray) -> None:
    head = np.array([0x800 + values.ndim, *values.shape], ">i4")
    path.write_bytes(head.tobytes() + values.tobytes())


CHECKOUTS: dict[str, Checkout] = {"pflib": PFLlib(), "pflib_ram": PFLlib(in_ram=True), "fl_bench": FLBench()}
