"""Task pages are done as they stand: their code, then their commands, in an empty folder."""

import importlib
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_breast_cancer

from fedpers.app.cli import main

DOCS = Path(__file__).parents[1] / "docs"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.S)


def do(page: str, block: int, *more: str) -> None:
    """Each command of a shell block of a page; `more` words make its runs shorter."""
    for line in blocks(page, "bash")[block].replace("\\\n", " ").splitlines():
        program, *words = shlex.split(line, comments=True)
        assert program == "fedpers"
        assert main([*words, *(more if words[0] == "run" and "-m" not in words else ())]) == 0, line


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_tables_from_hospitals(empty: Path) -> None:
    (code,) = blocks("hospitals.md", "python")
    exec(compile(code, "hospitals.md", "exec"), {})
    do("hospitals.md", 0, "rounds=2")
    clients = pd.read_csv(empty / "runs" / "hospitals" / "clients.csv")
    assert sorted(clients["name"]) == ["Ahus, Oslo", "Berlin Mitte", "Porto"]
    table = pd.read_csv("patients.csv").dropna()
    table[table.hospital == "Porto"].drop(columns=["hospital", "outcome"]).head(3).to_csv(
        "new.csv", index=False
    )
    do("hospitals.md", 1)
    assert set(pd.read_csv("predictions.csv")["prediction"]) <= {"ill", "well"}


def test_continue_a_run(empty: Path) -> None:
    do("continue.md", 0)
    rows = pd.read_csv(empty / "runs" / "mine" / "metrics.csv")
    assert rows["round"].max() == 40


def test_tasks_of_labels_rankings_and_your_own(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "my_tasks", raising=False)
    labels, ratings = blocks("tasks.md", "python")
    (own,) = blocks("own_loss.md", "python")
    exec(compile(labels, "tasks.md", "exec"), {})
    exec(compile(ratings, "tasks.md", "exec"), {})
    Path("my_tasks.py").write_text(own, encoding="utf-8")
    do("tasks.md", 1, "rounds=2")
    do("own_loss.md", 0)
    assert list(pd.read_csv("order.csv")) == ["rank", "p"]
    assert main(["export", "runs/focal", "--client", "0"]) == 0  # a task of one's own has its base's tables
    np.savez("new.npz", x=np.zeros((2, 1, 8, 8), np.float32), y=[0, 1])
    assert main(["predict", "new.npz", "--model", "runs/focal/export/client_0", "--out", "said.csv"]) == 0
    assert list(pd.read_csv("said.csv")) == ["prediction", *[f"p{c}" for c in range(10)]]
    del sys.modules["my_tasks"]
    measured = {"labels": "label_auc", "ranking": "hr_at_10", "focal": "sure"}
    for run, name in measured.items():
        row = pd.read_csv(empty / "runs" / run / "metrics.csv").iloc[-1]
        assert 0 <= row[name] <= 1, run


def test_a_metric_of_your_own(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "my_scores", raising=False)  # another test's file of that name
    (code,) = blocks("own_metric.md", "python")
    Path("my_scores.py").write_text(code, encoding="utf-8")
    do("own_metric.md", 0, "rounds=1", "out=run")
    del sys.modules["my_scores"]
    assert "sensitivity" in pd.read_csv(empty / "run" / "clients.csv").columns


def test_a_pretrained_backbone_keeps_the_numbers_of_its_file(
    empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's module and command: what patterns do not name is the file's after training."""
    monkeypatch.delitem(sys.modules, "my_nets", raising=False)
    Path("my_nets.py").write_text(blocks("own_models.md", "python")[0], encoding="utf-8")
    module = importlib.import_module("my_nets").Net()
    save_file(module.state_dict(), "base.safetensors")
    do("pretrained.md", 0, "rounds=2", "out=run", "data.limit=200")
    del sys.modules["my_nets"]
    assert main(["export", "run", "--client", "0"]) == 0
    after = load_file("run/export/client_0.safetensors")
    of = {name.rpartition(".")[0]: value for name, value in after.items() if name.endswith(".weight")}
    (conv,) = [v for name, v in of.items() if "conv" in name]
    assert torch.equal(conv, module.conv.weight)
    head = next(v for name, v in of.items() if v.shape == module.fc.weight.shape)
    assert not torch.equal(head, module.fc.weight)


def test_predictions_of_an_exported_model(empty: Path) -> None:
    load_breast_cancer(as_frame=True).frame.sample(frac=1, axis=1, random_state=0)[:3].to_csv(
        "new.csv", index=False
    )
    do("predict.md", 0, "rounds=1")
    assert len(pd.read_csv("predictions.csv")) == 3
