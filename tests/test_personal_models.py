"""Every method's personal models leave a finished run, and are in a fresh process what clients.csv says.

One tiny run a method, two of whose clients are new; then a process without any method's records forks
once a method to export, and once more to load: a fresh process each, at the price of a fork.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fedpers import load_exported
from fedpers.app.build import assemble
from fedpers.app.cli import main
from fedpers.app.export import open_run, personal_model
from fedpers.app.run import execute
from fedpers.app.run_folder import stored_config
from fedpers.config import compose, registry
from fedpers.core.errors import CheckpointError, ConfigError

pytestmark = pytest.mark.xdist_group("personal models")  # one run of each method for all of them

SMALL = ["data.num_clients=6", "data.limit=300", "rounds=2", "model.hidden=[6]", "eval_every=2"]
NEW = ["new_clients=2", "new_epochs=2", "new_lr=0.1"]
SHAREABLE = {"pflego": "body", "fedper": "body", "fedrep": "body", "lgfedavg": "head", "fedrecon": "body"}
FRESH = """
import json, os, sys, traceback
from pathlib import Path
import numpy as np, torch
from fedpers.app.export import export
from fedpers import load_exported

def child(work, *args):
    pid = os.fork()
    if pid == 0:
        try:
            work(*args)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, args

def leave(run):
    export(run, client="all")

def come_back(run):
    found = []
    for k, path in enumerate(sorted((run / "export").glob("client_*.json"))):
        data = np.load(run / f"test_{k}.npz")
        found.append(load_exported(path).accuracy(torch.from_numpy(data["x"]), torch.from_numpy(data["y"])))
    (run / "accuracy.json").write_text(json.dumps(found))

assert not [m for m in sys.modules if m.startswith(("fedpers.strategies.", "fedpers.clients."))]
torch.set_num_threads(1)
for run in map(Path, sys.argv[1:]):
    child(leave, run)
    child(come_back, run)
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of each method; every client's test samples beside."""
    root = tmp_path_factory.mktemp("runs")
    for name in registry.METHODS:
        more = ["method.private=[head.*]"] if name == "fedbn" else []  # the network does not normalise
        execute(compose.load([f"method={name}", *SMALL, *NEW, *more]), root / name)
    federation = assemble(stored_config(root / "fedavg")).federation
    for k in range(federation.num_clients):
        test = federation.client(k).test
        for name in registry.METHODS:
            np.savez(root / name / f"test_{k}.npz", x=test.x.numpy(), y=test.y.numpy())
    folders = [str(root / name) for name in registry.METHODS]
    subprocess.run([sys.executable, "-c", FRESH, *folders], check=True, timeout=600, env=os.environ)
    return root


@pytest.mark.parametrize("name", registry.METHODS)
def test_a_fresh_process_reproduces_each_clients_accuracy(runs: Path, name: str) -> None:
    table = pd.read_csv(runs / name / "clients.csv")
    told = table["accuracy"].fillna(table["new_accuracy"])
    found = json.loads((runs / name / "accuracy.json").read_text())
    assert np.float32(found).tolist() == np.float32(told).tolist()
    assert len(found) == 6


@pytest.mark.parametrize("name", registry.METHODS)
def test_new_clients_are_measured_before_and_after_local_training(runs: Path, name: str) -> None:
    summary = json.loads((runs / name / "summary.json").read_text())
    new, table = summary["new_clients"], pd.read_csv(runs / name / "clients.csv")
    assert (new["count"], new["epochs"], new["lr"]) == (2, 2, 0.1)
    rows = table[table["new_num"] > 0]
    for column, when in (("new_accuracy_before", "before"), ("new_accuracy", "after")):
        by_hand = (rows[column] * rows["new_num"]).sum() / rows["new_num"].sum()
        assert new[when]["accuracy"] == pytest.approx(by_hand, abs=1e-12)
    assert not np.allclose(rows["new_loss"], rows["new_loss_before"], rtol=1e-3)
    assert np.isnan(table["new_loss"][:4]).all()


def test_the_shared_part_leaves_too(runs: Path, tmp_path: Path) -> None:
    for name, kind in SHAREABLE.items():
        assert main(["export", str(runs / name), "--out", str(tmp_path / name)]) == 0
        part = load_exported(tmp_path / name / f"{kind}.json")
        whole = personal_model(runs / name, 0)
        x = torch.rand(3, 1, 8, 8)
        body, head = (part, whole) if kind == "body" else (whole, part)
        features = whole.model.body(body.params, x)
        assert torch.equal(whole.model.head(head.params, features), whole(x))
        assert torch.equal(part(x if kind == "body" else features), features if kind == "body" else whole(x))


def test_a_mixture_is_exported_as_one(runs: Path) -> None:
    model = load_exported(runs / "fedem" / "export" / "client_1.json")
    assert (model.params, model.about["kind"]) == (None, "mixture")
    ours = personal_model(open_run(runs / "fedem"), 1)
    x = torch.rand(4, 1, 8, 8)
    assert torch.equal(model(x), ours(x))


def test_torch_exports_what_was_loaded(runs: Path) -> None:
    for name in ("fedavg", "fedem"):
        model, x = load_exported(runs / name / "export" / "client_2.json"), torch.rand(2, 1, 8, 8)
        program = torch.export.export(model, (x,)).module()
        assert torch.allclose(program(x), model(x), rtol=1e-6, atol=1e-6)


def test_mistakes_are_named(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="client 6: the run has clients 0 to 5"):
        personal_model(runs / "fedavg", 6)
    assert main(["export", str(runs / "fedavg"), "--client", "three"]) == 2
    assert main(["export", str(runs / "fedavg"), "--client", "1", "--model", "global"]) == 2
    path = runs / "fedavg" / "export" / "client_0.json"
    (tmp_path / "old.json").write_text(json.dumps(json.loads(path.read_text()) | {"format": 1}))
    (tmp_path / "old.safetensors").touch()
    with pytest.raises(CheckpointError, match="export it again"):
        load_exported(tmp_path / "old.json")
