"""`fedpers bench libraries` with a checkout that only says how long its rounds took."""

import json
import sys

import pytest

from fedpers.app.cli import main
from fedpers.bench import libraries
from fedpers.bench.work import Work

FAKE = """
import os, sys
import numpy as np
from pathlib import Path
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert os.environ["OMP_NUM_THREADS"] == "1" and given["-dev"] == "cpu"
assert Path.cwd() != Path(__file__).parent
for k in range(int(given["-nc"])):
    data = np.load(f"../dataset/{given['-data']}/train/{k}.npz", allow_pickle=True)["data"].tolist()
    assert data["x"].shape == (20, 1, 28, 28) and data["y"].shape == (20,)
for t in range(int(given["-gr"]) + 1):
    print("-" * 25, "time cost", "-" * 25, 99.0 if t == 0 else 7.0 + t)
print("Average time cost: 5.0s.")
"""


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPERS_BENCH", str(tmp_path))
    monkeypatch.setattr(libraries, "WORK", Work(M=4, C=2, n=20, B=10, rounds=2))
    monkeypatch.setattr(libraries, "MANY", Work(M=6, C=2, n=20, B=10, rounds=2))
    folder = tmp_path / "theirs"
    (folder / "system").mkdir(parents=True)
    (folder / "system" / "main.py").write_text(FAKE)
    return folder


def test_both_are_run_and_compared_and_the_checkout_stays_as_it_is(checkout, tmp_path):
    out = tmp_path / "results"
    words = ["--methods", "fedrep", "--models", "mlp", "--passes", "1", "--out", str(out)]
    assert main(["bench", "libraries", "--pflib", str(checkout), *words]) == 0
    (good,) = json.loads((out / "libraries.json").read_text())["rows"]
    assert (good["method"], good["model"], good["pflib"]) == ("fedrep", "mlp", 8.5)  # without the first
    assert good["times"] == pytest.approx(8.5 / good["ours"]) and good["ours"] > 0
    assert [p.name for p in checkout.rglob("*")] == ["system", "main.py"]


def test_some_methods_are_run_with_many_clients_too(checkout, tmp_path):
    words = ["--methods", "fedper", "--models", "mlp", "--passes", "1", "--out", str(tmp_path)]
    assert main(["bench", "libraries", "--pflib", str(checkout), *words]) == 0
    rows = json.loads((tmp_path / "libraries.json").read_text())["rows"]
    assert [(r["model"], r["clients"]) for r in rows] == [("mlp", 4), ("mlp", 6)]
    assert all(r["ours_mb"] > 0 and r["pflib"] == 8.5 for r in rows)


def test_what_fails_has_no_number_and_the_other_one_has(tmp_path, capsys):
    rounds = "for s in (9, 1, 3): print('- time cost -', s)"
    ways = {"ours": [sys.executable, "-c", rounds], "pflib": [sys.executable, "-c", "raise SystemExit('no')"]}
    row = libraries.compared(ways, tmp_path, passes=1)
    assert (row["ours"], row["pflib"], row["pflib_mb"], row["times"]) == (2.0, None, None, None)
    assert "pflib failed:\nno" in capsys.readouterr().err


def test_their_options_are_the_same_work():
    words = libraries.options("fedprox", "mlp", libraries.WORK)
    given = dict(zip(words[::2], words[1::2], strict=True))
    assert given["-m"] == "DNN" and given["-algo"] == "FedProx" and given["-mu"] == "0.1"
    assert (float(given["-jr"]) * int(given["-nc"]), given["-lbs"], given["-ls"]) == (20, "20", "1")
    assert int(given["-eg"]) > int(given["-gr"])  # no evaluation after the first round


@pytest.mark.parametrize(
    ("words", "text"), [([], "expected a checkout of PFLlib"), (["--methods", "pflego"], "Known: ")]
)
def test_a_mistake_is_one_message(words, text, checkout, tmp_path, capsys):
    where = ["--pflib", str(checkout)] if words else []
    assert main(["bench", "libraries", *where, *words, "--out", str(tmp_path / "results")]) == 2
    assert text in capsys.readouterr().err
    assert not (tmp_path / "results").exists()
