"""`fedpers bench libraries` with checkouts that only say how long their rounds took."""

import json
import os
import re
import subprocess
import sys

import pytest

from fedpers.app.cli import main
from fedpers.bench import libraries
from fedpers.bench.checkouts import CHECKOUTS, FLBench, PFLlib
from fedpers.bench.work import Work, arrays

PFLLIB = """
import os, sys
from pathlib import Path
from flcore.trainmodel.models import FedAvgCNN
from utils.data_utils import READ, read_client_data
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert os.environ["OMP_NUM_THREADS"] == "1" and given["-dev"] == "cpu"
assert Path.cwd() != Path(__file__).parent
clients = int(given["-nc"])
for k in [*range(clients), *range(clients)]:
    data = read_client_data(given["-data"], k)
    assert data["x"].shape == (20, 1, 28, 28) and data["y"].shape == (20,)
for t in range(int(given["-gr"]) + 1):
    print("-" * 25, "time cost", "-" * 25, 99.0 if t == 0 else READ[0] / clients + t)
print("Average time cost: 5.0s.")
if given["-m"] == "CNN":
    print("network:", FedAvgCNN(in_features=1, num_classes=10, dim=1024))
"""
MODELS = "def FedAvgCNN(**sizes):\n    return 'their own'\n"
READS = """
import numpy as np
READ = [0]
def read_client_data(name, k):
    READ[0] += 1
    return np.load(f"../dataset/{name}/train/{k}.npz", allow_pickle=True)["data"].tolist()
"""
FL_BENCH = """
import json, pickle, sys
import numpy as np
from pathlib import Path
given = dict(word.lstrip("+").split("=", 1) for word in sys.argv[1:])
here = Path("data") / given["dataset.name"]
json.loads((here / "args.json").read_text())
images = (here / "MNIST/raw/train-images-idx3-ubyte").read_bytes()
shape = np.frombuffer(images[4:16], ">i4")
assert len(images) == 16 + shape.prod() and shape[1:].tolist() == [28, 28]
labels = np.frombuffer((here / "MNIST/raw/train-labels-idx1-ubyte").read_bytes()[8:], np.uint8)
known = pickle.loads((here / "partition.pkl").read_bytes())
rows = [i for own in known["data_indices"] for i in own["train"]]
assert rows == list(range(shape[0])) and len(labels) == shape[0]
assert len(known["data_indices"]) == known["separation"]["total"]
print(labels.tolist())
print("FedAvg's average time taken by each global epoch: 1 min 2.50 sec.")
"""


@pytest.fixture
def checkouts(tmp_path, monkeypatch):
    """The options that name one of each."""
    monkeypatch.setenv("FEDPERS_BENCH", str(tmp_path))
    monkeypatch.setattr(libraries, "WORK", Work(M=4, C=2, n=20, B=10, rounds=2))
    monkeypatch.setattr(libraries, "CNN_ROUNDS", 3)
    monkeypatch.setattr(libraries, "MANY", Work(M=6, C=2, n=20, B=10, rounds=2))
    files = {
        "pflib/system/main.py": PFLLIB,
        "pflib/system/utils/data_utils.py": READS,
        "pflib/system/flcore/trainmodel/models.py": MODELS,
        "fl-bench/main.py": FL_BENCH,
        "fl-bench/src/server/fedavg.py": "",
        "fl-bench/config/defaults.yaml": "",
        "fl-bench/data/utils/datasets.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return {way: str(tmp_path / way) for way in ("pflib", "fl-bench")}


def bench(out, *words):
    return main(["bench", "libraries", *words, "--passes", "1", "--out", str(out)])


def rows(out):
    return json.loads((out / "libraries.json").read_text())["rows"]


def test_all_are_run_and_compared_and_the_checkouts_stay_as_they_are(checkouts, tmp_path):
    out, before = tmp_path / "results", sorted(tmp_path.glob("*/**/*.py"))
    both = ["--pflib", checkouts["pflib"], "--fl-bench", checkouts["fl-bench"]]
    assert bench(out, *both, "--methods", "fedrep", "--models", "mlp,mlp-200-200,cnn") == 0
    one, two, cnn = rows(out)
    assert (one["method"], one["model"], one["pflib"]) == ("fedrep", "mlp", 3.5)  # without the first round
    assert one["pflib_ram"] == 2.5  # each file read once
    assert "fl_bench" not in one and "pflib" not in two and two["fl_bench"] == cnn["fl_bench"] == 62.5
    assert one["times_pflib"] == pytest.approx(3.5 / one["ours"]) and one["ours"] > 0
    assert cnn["pflib"] == 4 and cnn["fl_bench_mb"] >= 0  # of a convolution's rounds there are three
    assert sorted(tmp_path.glob("*/**/*.py")) == before


def test_one_library_is_enough_and_only_its_methods_are_run(checkouts, tmp_path, monkeypatch):
    """What is run is asked here; the tests around it run it."""
    out, run = tmp_path / "results", []
    monkeypatch.setattr(libraries, "compared", lambda ways, *_: run.append(set(ways)) or {"ours": 1.0})
    assert bench(out, "--fl-bench", checkouts["fl-bench"], "--methods", "fedem,cfl") == 0
    found = {(r["method"], r["model"]) for r in rows(out)}
    assert found == {(name, model) for name in ("fedem", "cfl") for model in ("mlp-200-200", "cnn")}
    assert run == [{"ours", "fl_bench"}] * 4


def test_some_methods_are_run_with_many_clients_too(checkouts, tmp_path):
    out = tmp_path / "results"
    assert bench(out, "--pflib", checkouts["pflib"], "--methods", "fedper", "--models", "mlp") == 0
    found = rows(out)
    assert [(r["model"], r["clients"]) for r in found] == [("mlp", 4), ("mlp", 6)]
    assert all(r["ours_mb"] > 0 and r["pflib"] == 3.5 for r in found)
    assert "pflib_ram" not in found[1]


def test_what_fails_has_no_number_and_the_other_one_has(tmp_path, capsys):
    rounds = "for s in (9, 1, 3): print('seconds of a round:', s)"
    ways = {"ours": [sys.executable, "-c", rounds], "pflib": [sys.executable, "-c", "raise SystemExit('no')"]}
    row = libraries.compared(ways, {"pflib": tmp_path}, passes=1)
    assert (row["ours"], row["pflib"], row["pflib_mb"]) == (2.0, None, None) and "times_pflib" not in row
    assert "pflib failed:\nno" in capsys.readouterr().err


def test_their_options_are_the_same_work(tmp_path):
    words = PFLlib().command(tmp_path, "fedprox", "mlp", libraries.WORK)[1:]
    given = dict(zip(words[::2], words[1::2], strict=True))
    assert given["-m"] == "DNN" and given["-algo"] == "FedProx" and given["-mu"] == "0.1"
    assert (float(given["-jr"]) * int(given["-nc"]), given["-lbs"], given["-ls"]) == (20, "20", "1")
    assert int(given["-eg"]) > int(given["-gr"])  # no evaluation after the first round
    given = dict(w.split("=") for w in FLBench().command(tmp_path, "fedprox", "cnn", libraries.WORK)[1:])
    assert given["method"] == "fedprox" and given["fedprox.mu"] == "0.1"
    assert (given["common.batch_size"], given["common.local_epoch"]) == ("20", "1")
    assert float(given["common.join_ratio"]) * 100 == 20 and given["optimizer.lr"] == "0.05"


def test_their_samples_are_ours(checkouts, tmp_path):
    work = libraries.WORK
    here = FLBench().prepare(tmp_path / "fl-bench", tmp_path / "made", work)
    labels = (here / "data/mnist/MNIST/raw/train-labels-idx1-ubyte").read_bytes()[8:]
    assert list(labels) == arrays(work)[1].reshape(-1).tolist()


def test_our_layers_are_theirs():
    """By their numbers of weights."""
    sizes = {m: sum(v.numel() for v in libraries.network(m, (1, 28, 28)).init(0).values())
             for m in libraries.MODELS}  # fmt: skip
    assert sizes["logistic"] == 784 * 10 + 10 and sizes["mlp"] == 785 * 100 + 101 * 10
    assert sizes["mlp-200-200"] == 785 * 200 + 201 * 200 + 201 * 10
    assert sizes["cnn"] == 26 * 32 + 801 * 64 + 1025 * 512 + 513 * 10
    assert {m for c in CHECKOUTS.values() for m in c.models} == set(libraries.MODELS)
    assert sizes["lenet"] == 26 * 6 + 151 * 16 + 257 * 120 + 121 * 84 + 85 * 10


@pytest.mark.parametrize(
    ("model", "in_ram"), [("cnn", False), ("cnn", True), ("lenet", False), ("lenet", True)]
)
def test_their_cnn_makes_room_for_lenet(model, in_ram, checkouts, tmp_path):
    """The layers that PFLlib's main file gets, by what torch prints of them, beside ours."""
    library, work = PFLlib(in_ram), libraries.WORK
    words = library.command(tmp_path / "pflib", "fedavg", model, work)
    here = library.prepare(tmp_path / "pflib", tmp_path / "made", work)
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    text = subprocess.run(
        [sys.executable, *words], cwd=here, env=env, capture_output=True, text=True, check=True
    )
    assert library.times(text.stdout) == ([2, 3] if in_ram else [3, 4])  # each file read once, or twice
    weights = [tuple(v.shape) for v in libraries.network(model, work.shape).init(0).values() if v.ndim > 1]
    theirs = [
        (int(b), int(a), 5, 5) if kind == "Conv2d" else (int(b), int(a))
        for kind, a, b in re.findall(
            r"(Conv2d|Linear)\((?:in_features=)?(\d+), (?:out_features=)?(\d+)", text.stdout
        )
    ]
    assert theirs == weights if model == "lenet" else "network: their own" in text.stdout


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "name a checkout"),
        (["--pflib", "."], "expected a checkout, which has system/main.py"),
        (["--fl-bench", "."], "expected a checkout, which has src/server/fedavg.py"),
        (["--methods", "pflego"], "Known: "),
    ],
)
def test_a_mistake_is_one_message(words, text, checkouts, tmp_path, capsys):
    where = ["--pflib", checkouts["pflib"]] if "--methods" in words else []
    assert bench(tmp_path / "results", *where, *words) == 2
    assert text in capsys.readouterr().err
    assert not (tmp_path / "results").exists()
