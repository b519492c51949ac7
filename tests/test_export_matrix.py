"""Methods x models: what is exported says of the test rows what clients.csv says, and is all of the model."""

import csv
import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch

from fedpers import load_exported
from fedpers.app.cli import main
from fedpers.app.export import open_run, personal_model, whole_models
from fedpers.app.run import execute
from fedpers.config import compose
from fedpers.config.registry import METHODS
from fedpers.core.errors import FedpersError

CLIENTS = ("anna", "ben", "carl")
FAST = ["rounds=2", "eval_every=0", "data.num_clients=null", "device=cpu"]
NEEDS = {
    "fedbn": ["method.private=[dense1.*]"],
    "federico": ["method.num_neighbours=2"],
    "fedmd": ["data.public_file={folder}/anna_rows.csv"],
}  # of a table's small network and three clients


def save(folder, k, x, y):
    """A client's rows, cut, as arrays."""
    cut = 2 * len(y) // 3
    np.savez(folder / f"{CLIENTS[k]}.npz", train_x=x[:cut], train_y=y[:cut], test_x=x[cut:], test_y=y[cut:])
    np.savez(folder.parent / f"{CLIENTS[k]}_rows.npz", x=x[cut:], y=y[cut:])


def samples(kind, y, rng):
    """Inputs that tell of their classes."""
    if kind == "table":
        return rng.normal(size=(len(y), 4)) * [1, 10, 100, 0.1] + y[:, None]
    if kind == "texts":
        return rng.integers(0, 5, (len(y), 6)) + 5 * y[:, None]
    return (rng.integers(0, 80, (len(y), 1, 16, 16)) + 60 * y[:, None, None, None]).astype(np.uint8)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """{kind: folder} of tables, images and texts of three clients."""
    root = tmp_path_factory.mktemp("made")
    for kind in ("table", "images", "texts"):
        (root / kind / "data").mkdir(parents=True)
        for k in range(len(CLIENTS)):
            rng = np.random.default_rng(k)
            y = rng.integers(0, 3, 45)
            x = samples(kind, y, rng)
            if kind == "table":
                for name, part in (("train", slice(0, 30)), ("test", slice(30, 45))):
                    folder = root / kind / "data" / CLIENTS[k]
                    folder.mkdir(exist_ok=True)
                    rows = pd.DataFrame(x, columns=list("abcd")).assign(label=np.array(["p", "q", "r"])[y])
                    rows[part].to_csv(folder / f"{name}.csv", index=False)
                shutil.copy(folder / "test.csv", root / kind / f"{CLIENTS[k]}_rows.csv")
            else:
                save(root / kind / "data", k, x, y)
    return root


MODELS = {
    "table": ("table", ["model=mlp", "model.hidden=[6]", "data.standardise=true"]),
    "images": ("images", ["model=lenet"]),
    "norms": ("images", ["model=module", "model.path=tests.own_nets:NormedDigits", "model.head=fc"]),
    "texts": ("texts", ["model=lstm", "model.vocabulary=15", "model.hidden=8", "data.tokens=true"]),
    "types": ("images", ["model=module", "model.path=tests.own_nets:OddTypes", "model.head=out"]),
}
CASES = [("table", m) for m in METHODS] + [
    (kind, m) for kind in MODELS if kind != "table" for m in ("fedavg", "fedper", "ditto", "pflego")
]
CASES += [("types", "fedem")]  # a mixture: its file holds what is trained, and its base is made anew


@pytest.mark.parametrize(("kind", "method"), CASES)
def test_rows_are_predicted_as_the_run_says(kind, method, made, tmp_path, capsys):
    where, words = MODELS[kind]
    folder, out = made / where, tmp_path / "out"
    base = ["data=files", f"data.path={folder / 'data'}", f"method={method}", *FAST, *words]
    execute(compose.load([*base, *(w.format(folder=folder) for w in NEEDS.get(method, []))]), out)
    table = pd.read_csv(out / "clients.csv", float_precision="round_trip")
    for k, name in enumerate(CLIENTS):
        model = personal_model(out, k).write(tmp_path / "models")
        rows, said = next(folder.glob(f"{name}_rows.*")), tmp_path / "said.csv"
        assert main(["predict", str(rows), "--model", str(model), "--out", str(said)]) == 0
        with said.open(newline="") as file:
            guesses = [row["prediction"] for row in csv.DictReader(file)]
        known = pd.read_csv(rows)["label"] if rows.suffix == ".csv" else np.load(rows)["y"]
        right = sum(g == str(v) for g, v in zip(guesses, known, strict=True))
        assert right == round(table.accuracy[k] * len(known)), name
    check_states(out)


def check_states(out) -> None:
    """What the run has of models is in their state dicts, all of it."""
    stored = open_run(out)
    for model in [personal_model(stored, 0), *whole_models(stored).values()]:
        state = model.state_dict()
        assert state and all(v.numel() for v in state.values())
        if model.about["kind"] != "mixture":
            assert state.keys() == model.params.keys()


def test_frozen_entries_of_any_type_go_through_checkpoints(made, tmp_path):
    """Whole numbers, bfloat16, float64 truth values: resumed is as never stopped."""
    _, words = MODELS["types"]
    base = ["data=files", f"data.path={made / 'images' / 'data'}", "method=ditto", *FAST[1:], *words]
    execute(compose.load([*base, "rounds=3"]), tmp_path / "whole")
    execute(compose.load([*base, "rounds=1", "checkpoint_every=1"]), tmp_path / "parts")
    execute(compose.resumed(tmp_path / "parts", ["rounds=3"]), tmp_path / "parts")
    whole, parts = (personal_model(tmp_path / name, 1).state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(v, parts[k]) and v.dtype == parts[k].dtype for k, v in whole.items())
    kinds = {str(v.dtype).removeprefix("torch.") for v in whole.values()}
    assert kinds == {"int64", "bfloat16", "float64", "bool", "float32"}
    path = personal_model(tmp_path / "whole", 1).write(tmp_path / "files")
    again = load_exported(path).state_dict()
    assert all(torch.equal(v, again[k]) and v.dtype == again[k].dtype for k, v in whole.items())


def test_a_mixture_beside_another_base_is_refused(made, tmp_path):
    _, words = MODELS["types"]
    base = ["data=files", f"data.path={made / 'images' / 'data'}", "method=fedem", *FAST, *words]
    execute(compose.load(base), tmp_path / "out")
    path = personal_model(tmp_path / "out", 0).write(tmp_path)
    about = path.with_suffix(".json")
    digest = json.loads(about.read_text())["base"]
    about.write_text(about.read_text().replace(digest, "0" * len(digest)))
    with pytest.raises(FedpersError, match="frozen"):
        load_exported(path)
