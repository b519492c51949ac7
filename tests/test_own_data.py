"""Your own data: each form of file gives the same clients, and what comes in arrives as it was."""

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import fedpers
from fedpers.app.cli import main
from fedpers.config import compose
from fedpers.core.data import Federation
from fedpers.datasets.config import DataConfig
from fedpers.datasets.federation import load_federation

RNG = np.random.default_rng(0)
SIZES = {"anna": 12, "ben": 20, "carl": 5}  # unequal clients
TABLES = {
    name: pd.DataFrame(RNG.normal(size=(n, 3)).astype(np.float32), columns=["a", "b", "c"]).assign(
        label=np.resize(["cat", "dog", "eel"], n)
    )
    for name, n in SIZES.items()
}


def load(path, **options):
    options = {"num_clients": None, "partition": "natural", **options}
    return load_federation(DataConfig(name="files", path=str(path), **options), 0)


def rows(federation, k):
    """All samples of client k, as a set of (x, y)."""
    parts = federation.client(k)
    return {
        (*x.tolist(), float(y))
        for p in (parts.train, parts.valid, parts.test)
        for x, y in zip(p.x, p.y, strict=True)
    }


def expected(table, classes=("cat", "dog", "eel")):
    numbers = [classes.index(v) for v in table["label"]]
    return {
        (*map(float, x), float(y))
        for x, y in zip(table[["a", "b", "c"]].to_numpy(np.float32), numbers, strict=True)
    }


def csv(folder):
    for name, table in TABLES.items():
        table.to_csv(folder / f"{name}.csv", index=False)
    return folder


def parquet(folder):
    for i, (name, table) in enumerate(TABLES.items()):
        table[["c", "label", "b", "a"] if i else list(table)].to_parquet(folder / f"{name}.parquet")
    return folder  # columns in another order


def npz(folder):
    for name, table in TABLES.items():
        np.savez(folder / f"{name}.npz", x=table[["a", "b", "c"]], y=table["label"].to_numpy().astype("U3"))
    return folder


def one_file(folder):
    whole = pd.concat([t.assign(client=name) for name, t in TABLES.items()])
    whole.sample(frac=1, random_state=0).to_csv(folder / "all.csv", index=False)
    return folder / "all.csv"


def mixed(folder):
    npz(folder)
    (folder / "ben.npz").unlink()
    TABLES["ben"].to_csv(folder / "ben.csv", index=False)
    (folder / "notes.txt").write_text("not read")
    return folder


@pytest.mark.parametrize("make", [csv, parquet, npz, one_file, mixed])
def test_every_form_gives_the_same_clients(tmp_path, make):
    federation = load(make(tmp_path))
    assert (federation.num_clients, federation.input_shape, federation.num_classes) == (3, (3,), 3)
    assert federation.notes[-1] == "classes: 0=cat, 1=dog, 2=eel"
    assert len(federation.notes) == 1 + 2 * (make is mixed)  # notes.txt; an array beside a table has no names
    for k, table in enumerate(TABLES.values()):
        assert rows(federation, k) == expected(table)
    sizes = [(len(federation.client(k).train), len(federation.client(k).test)) for k in range(3)]
    assert sizes == [(9, 2), (15, 4), (4, 1)]  # a fifth for test, a tenth of the rest for validation
    assert federation.label_counts.sum(1).tolist() == [9, 15, 4]


def test_given_splits_stay_apart(tmp_path):
    for name, table in TABLES.items():
        (tmp_path / name).mkdir()
        for split, part in {"train": table[:3], "valid": table[3:4], "test": table[4:]}.items():
            part.to_csv(tmp_path / name / f"{split}.csv", index=False)
    federation = load(tmp_path)
    for k, table in enumerate(TABLES.values()):
        parts = federation.client(k)
        assert [len(p) for p in (parts.train, parts.valid, parts.test)] == [3, 1, len(table) - 4]
        assert set(parts.train.x[:, 0].tolist()) == set(table["a"][:3].tolist())
        assert parts.valid.x[0, 0] == table["a"][3]


@pytest.mark.parametrize("names", [("training", "val", "testing"), ("Train", "VALIDATION", "Test")])
def test_splits_have_many_names(tmp_path, names):
    for name, part in zip(names, (slice(0, 6), slice(6, 8), slice(8, 12)), strict=True):
        (tmp_path / "anna").mkdir(exist_ok=True)
        TABLES["anna"][part].to_csv(tmp_path / "anna" / f"{name}.csv", index=False)
        images(tmp_path, "pictures", name, size=(4, 6))
    (tmp_path / "anna" / "more.csv").write_text("a\n1\n")
    federation = load(tmp_path)
    assert federation.clients == ("anna",) and any("anna/more.csv" in note for note in federation.notes)
    parts = federation.client(0)
    assert [len(s) for s in (parts.train, parts.valid, parts.test)] == [6, 2, 4]
    pictures = load(tmp_path / "pictures", partition="iid", num_clients=2)
    assert pictures.num_clients == 2 and pictures.clients == ()


@pytest.mark.parametrize("end", ["_train _test", "-Training -Testing", ".train .val"])
def test_a_split_in_a_files_name_makes_no_client(tmp_path, end):
    one, other = end.split()
    for name in (f"anna{one}", f"anna{other}", "ben"):
        TABLES["ben"].to_csv(tmp_path / f"{name}.csv", index=False)
    with pytest.raises(fedpers.FedpersError, match=f"anna{one} are not two clients|anna{other} are not two"):
        load(tmp_path)


def test_one_file_without_clients_is_dealt(tmp_path):
    pd.concat(TABLES.values()).to_csv(tmp_path / "all.csv", index=False)
    federation = load(tmp_path / "all.csv", partition="dirichlet", num_clients=2, alpha=10.0)
    assert federation.num_clients == 2
    assert rows(federation, 0) | rows(federation, 1) == set.union(*map(expected, TABLES.values()))
    with pytest.raises(fedpers.FedpersError, match=r"data.client=hospitl: .*all.csv has no such column"):
        load(tmp_path / "all.csv", client="hospitl", partition="dirichlet", num_clients=2, alpha=10.0)


def test_an_export_from_another_folder_says_where_to_go(tmp_path, monkeypatch, capsys):
    (tmp_path / "here").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    many = {name: pd.concat([table] * 3) for name, table in TABLES.items()}
    pd.concat([t.assign(client=name) for name, t in many.items()]).to_csv("all.csv", index=False)
    words = ["data=files", "data.path=all.csv", "method=fedavg", "rounds=1"]
    assert main(["run", *words, "out=run"]) == 0 and main(["export", "run", "--client", "ben"]) == 0
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["export", "../here/run", "--client", "ben"]) == 2
    said = capsys.readouterr().err
    assert "data.path=all.csv: the run's data are not here" in said and "call this command there" in said


def test_a_regression_keeps_its_values(tmp_path):
    for name, table in TABLES.items():
        table.assign(label=table["a"] * 2).to_parquet(tmp_path / f"{name}.parquet")
    federation = load(tmp_path, task="regression")
    assert (federation.task, federation.num_classes, federation.label_counts.shape) == (
        "regression",
        1,
        (3, 0),
    )
    part = federation.client(1).train
    assert part.y.dtype == torch.float32
    torch.testing.assert_close(part.y, part.x[:, 0] * 2)
    assert load(tmp_path, task="regression", partition="iid", num_clients=4).num_clients == 4


def test_rows_without_a_value_are_dropped_where_asked(tmp_path):
    csv(tmp_path)
    table = TABLES["ben"].copy()
    table.loc[2, "b"], table.loc[5, "label"] = np.nan, None
    table.to_csv(tmp_path / "ben.csv", index=False)
    federation = load(tmp_path, missing="drop")
    assert rows(federation, 1) == expected(table.dropna())


def test_numbers_that_are_no_0_1_2_are_renamed(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.eye(6), y=[-1, 5, 5, -1, -1, 5])
    federation = load(tmp_path)
    assert federation.notes == ("classes: 0=-1, 1=5",) and federation.num_classes == 2
    assert sorted(y for *_, y in rows(federation, 0)) == [0, 0, 0, 1, 1, 1]


def test_text_is_numbers_of_tokens(tmp_path):
    tokens = RNG.integers(0, 50, (10, 6))
    tokens[0, 0] = 49
    np.savez(tmp_path / "a.npz", x=tokens, y=np.arange(10) % 2)
    table = pd.DataFrame({"text": list(tokens), "label": np.arange(10) % 2})
    table.to_parquet(tmp_path / "b.parquet")
    federation = load(tmp_path, tokens=True)
    assert (federation.tokens, federation.input_shape) == (50, (6,))
    assert rows(federation, 0) == rows(federation, 1)


def images(folder, *above, size=(4, 6), mode="RGB"):
    for i in range(6):
        place = folder.joinpath(*above, "cat" if i % 2 else "dog")
        place.mkdir(parents=True, exist_ok=True)
        Image.new(mode, size, 40 * i if mode == "L" else (40 * i, 0, 255)).save(place / f"{i}.png")


def test_images_in_folders_of_clients_and_classes(tmp_path):
    for name in ("anna", "ben"):
        images(tmp_path, name)
    federation = load(tmp_path)
    assert (federation.num_clients, federation.input_shape, federation.num_classes) == (2, (3, 6, 4), 2)
    parts = federation.client(0)
    x, y = torch.cat([parts.train.x, parts.test.x]), torch.cat([parts.train.y, parts.test.y])
    red = (x[:, 0, 0, 0] * 255 / 40).round().long()
    assert sorted(red.tolist()) == [0, 1, 2, 3, 4, 5]
    assert torch.equal(y, 1 - red % 2) and bool((x[:, 2] == 1).all())  # cat 0, dog 1


def test_images_of_one_folder_are_dealt_and_train_and_test_are_kept(tmp_path):
    images(tmp_path / "one", mode="L")
    federation = load(tmp_path / "one", partition="iid", num_clients=2, image_size=[3, 3])
    assert (federation.num_clients, federation.input_shape) == (2, (1, 3, 3))
    for split in ("train", "test"):
        images(tmp_path / "cut", "anna", split)
    assert (len(load(tmp_path / "cut", valid_fraction=0).client(0).train)) == 6


# ---- from Python --------------------------------------------------------------------------------


def test_a_federation_from_arrays():
    x, y = torch.randn(10, 2), np.resize(["no", "yes"], 10)
    cut = {"train": (x.numpy(), y), "test": (x[:4].tolist(), list(y[:4]))}
    federation = fedpers.Federation.from_arrays({"a": (x, y), "b": cut}, name="mine")
    assert isinstance(federation, Federation) and federation.name == "mine"
    sizes = [[len(p) for p in (c.train, c.valid, c.test)] for c in map(federation.client, range(2))]
    assert sizes == [[8, 0, 2], [10, 0, 4]]
    assert federation.notes == ("classes: 0=no, 1=yes",)
    assert torch.equal(federation.client(1).train.x, x)
    assert federation.label_counts[1].tolist() == [5, 5]


def test_a_federation_from_arrays_runs():
    from fedpers.clients.fedavg import FedAvgClient, FedAvgConfig
    from fedpers.learning.model import build_model
    from fedpers.method import LocalConfig, Plan
    from fedpers.simulate import simulate
    from fedpers.strategies.fedavg import FedAvg

    x = RNG.normal(size=(40, 3))
    w = np.array([1.0, -2.0, 0.5])
    federation = fedpers.Federation.from_arrays(
        [(x[:25], x[:25] @ w), (x[25:], x[25:] @ w)], task="regression"
    )
    model = build_model("linear", input_shape=(3,), num_outputs=1, task="regression")
    config = FedAvgConfig(LocalConfig(lr=0.05))
    strategy = FedAvg(config, model, Plan())
    simulate(strategy, FedAvgClient(config, model), federation, 60)
    found = strategy.state.params["head.weight"].squeeze().numpy()
    np.testing.assert_allclose(found, w, atol=1e-2)  # noiseless: the plane itself


def test_the_command_line_takes_the_keys(tmp_path):
    run = compose.load(["data=files", f"data.path={csv(tmp_path)}", "data.target=label", "model=logistic"])
    assert run.data.target == "label" and load_federation(run.data, 0).num_clients == 3
