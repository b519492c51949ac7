"""An exported model says of raw rows what its run said of them, and refuses rows of another kind."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_breast_cancer

from fedpers import Federation, load_exported
from fedpers.app.cli import main
from fedpers.app.export import export, open_run, personal_model, whole_models
from fedpers.app.run import execute
from fedpers.config import compose
from tests.own_nets import Plain

FAST = ["rounds=3", "eval_every=0", "observers=[]"]
MLP = ["method=fedper", "model=mlp", "model.hidden=[16]", "method.local.lr=0.3"]


def run(out, *words):
    execute(compose.load([*MLP, *FAST, *words]), out)
    return out


def told(out):
    """Each client's accuracy in the run."""
    table = pd.read_csv(out / "clients.csv", float_precision="round_trip")
    return table["accuracy"].tolist(), table["num_test"].astype(int).tolist()


def right(capsys, rows, model, *more):
    """How many rows `fedpers predict` says are right, of how many."""
    capsys.readouterr()
    out = Path(model).parent / "said.csv"
    assert main(["predict", str(rows), "--model", str(model), "--out", str(out), *more]) == 0
    share, n = re.search(r"([\d.]+)% of (\d+) rows", capsys.readouterr().err).groups()
    return round(float(share) / 100 * int(n)), int(n)


def refused(capsys, rows, model, *more):
    capsys.readouterr()
    assert main(["predict", str(rows), "--model", str(model), *more]) == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1 and not said.out
    return said.err


def test_a_model_that_is_not_there_is_told(tmp_path, capsys):
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    said = refused(capsys, tmp_path / "rows.csv", tmp_path / "client_9.safetensors")
    assert "client_9.safetensors: there is no such file" in said and "fedpers export RUN" in said
    (tmp_path / "client_9.safetensors").write_bytes(b"")
    said = refused(capsys, tmp_path / "rows.csv", tmp_path / "client_9.safetensors")
    assert "client_9.json: there is no such file" in said


def table(n, seed):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=n) * 50 + 1000, rng.normal(size=n) * 0.01
    return pd.DataFrame(
        {"age": a, "dose": b, "result": np.where((a - 1000) / 50 + b / 0.01 > 0, "ill", "well")}
    )


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A run on standardised tables with names, words for classes, and rows without a value."""
    root = tmp_path_factory.mktemp("tables")
    for k, name in enumerate(("anna", "ben", "carl")):
        (root / "data" / name).mkdir(parents=True)
        train = table(200, k)
        train.loc[3, "dose"] = np.nan
        train.to_csv(root / "data" / name / "train.csv", index=False)
        table(90 + k, 10 + k)[["result", "dose", "age"]].to_csv(
            root / "data" / name / "test.csv", index=False
        )
    words = [f"data.path={root / 'data'}", "data.target=result", "data.standardise=true", "data.missing=drop"]
    run(root / "out", "data=files", *words)
    export(root / "out", client="all")
    return root


def test_a_table_of_names_and_words_is_predicted_as_in_the_run(tables, capsys):
    shares, sizes = told(tables / "out")
    for k, name in enumerate(("anna", "ben", "carl")):
        model = tables / "out" / "export" / f"client_{k}"
        rows = tables / "data" / name / "test.csv"
        assert right(capsys, rows, model) == (round(shares[k] * sizes[k]), sizes[k])
        about = json.loads(model.with_suffix(".json").read_text())
        assert about["client_name"] == name and about["pipeline"]["classes"] == ["ill", "well"]
        with (model.parent / "said.csv").open(newline="") as file:
            said = list(csv.DictReader(file))
        assert {r["prediction"] for r in said} == {"ill", "well"} and set(said[0]) > {"p_ill", "p_well"}
    assert min(shares) > 0.9  # a run that learned nothing would prove nothing


def test_rows_of_another_kind_are_refused(tables, tmp_path, capsys):
    model, rows = tables / "out" / "export" / "client_0.json", table(20, 3)
    for name, change, text in [
        ("renamed", lambda t: t.rename(columns={"dose": "weight"}), "no dose; unknown: weight"),
        ("more", lambda t: t.assign(height=1), "unknown: height"),
        ("less", lambda t: t.drop(columns="age"), "no age"),
        ("class", lambda t: t.replace({"ill": "dead"}), "label dead is none of ill, well"),
        ("hole", lambda t: t.assign(age=np.nan), "NaN"),
        ("none", lambda t: t[:0], "no rows"),
        ("index", lambda t: t.assign(**{"": 1}), "unknown: one without a name"),
    ]:
        change(rows).to_csv(tmp_path / f"{name}.csv", index=False)
        assert text in refused(capsys, tmp_path / f"{name}.csv", model)
    np.savez(tmp_path / "rows.npz", x=rows.drop(columns="result").to_numpy())  # in whatever order
    assert "x has no names of columns, and the model knows" in refused(capsys, tmp_path / "rows.npz", model)
    rows.drop(columns="result").to_parquet(tmp_path / "new.parquet")  # no answers
    assert main(["predict", str(tmp_path / "new.parquet"), "--model", str(model)]) == 0


def test_a_client_can_be_named_as_the_data_names_it(tables, tmp_path, capsys):
    assert main(["export", str(tables / "out"), "--client", "ben", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "client_1.json").is_file()
    assert main(["export", str(tables / "out"), "--client", "bem", "--out", str(tmp_path)]) == 2
    assert "did you mean 'ben'" in capsys.readouterr().err


def test_one_table_of_all_clients_is_rows_too(tmp_path, capsys):
    whole = pd.concat([table(60, k).assign(client=f"c{k}") for k in range(3)])
    whole.to_csv(tmp_path / "all.csv", index=False)
    out = run(tmp_path / "out", "data=files", f"data.path={tmp_path / 'all.csv'}", "data.target=result",
              "data.standardise=true", "method=fedavg", "eval_train=true")  # fmt: skip
    (path,) = export(out)
    assert right(capsys, tmp_path / "all.csv", path)[1] == 180


def pictures(root, depth):
    rng = np.random.default_rng(depth)
    for client in ("anna", "ben"):
        for split, n in (("train", 20), ("test", 9)):
            for i in range(n):
                y = i % 2
                x = rng.integers(0, 120, (6, 6)) + 100 * y
                x = x.astype(np.uint8) if depth == 8 else x.astype(np.uint16) * 257
                path = root / client / split / ("dark", "bright")[y] / f"{i}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(x).save(path)


@pytest.mark.parametrize(("depth", "size"), [(8, "[]"), (16, "[]"), (8, "[3,4]")])
def test_images_in_folders_are_predicted_as_in_the_run(tmp_path, capsys, depth, size):
    pictures(tmp_path / "data", depth)
    out = run(tmp_path / "out", "data=files", f"data.path={tmp_path / 'data'}", f"data.image_size={size}",
              "data.standardise=true")  # fmt: skip
    shares, sizes = told(out)
    export(out, client="all")
    for k, name in enumerate(("anna", "ben")):
        model = out / "export" / f"client_{k}.json"
        assert right(capsys, tmp_path / "data" / name / "test", model) == (
            round(shares[k] * sizes[k]),
            sizes[k],
        )
        assert (
            main(
                ["predict", str(tmp_path / "data" / name / "test" / "dark" / "0.png"), "--model", str(model)]
            )
            == 0
        )
        assert capsys.readouterr().out.splitlines()[0] == "prediction,p_bright,p_dark"
    assert "name the one" in refused(capsys, tmp_path / "data" / "anna", model)


def test_bytes_are_fractions_as_in_the_run_and_nothing_else_is_taken_for_them(tmp_path, capsys):
    rng, y = np.random.default_rng(0), np.arange(60) % 2
    x = (rng.integers(0, 100, (60, 1, 4, 4)) + 120 * y[:, None, None, None]).astype(np.uint8)
    for i, name in enumerate(("anna", "ben")):
        part = slice(30 * i, 30 * i + 20), slice(30 * i + 20, 30 * i + 30)
        (tmp_path / "data").mkdir(exist_ok=True)
        np.savez(tmp_path / "data" / f"{name}.npz", train_x=x[part[0]], train_y=y[part[0]], test_x=x[part[1]],
                 test_y=y[part[1]])  # fmt: skip
    out = run(tmp_path / "out", "data=files", f"data.path={tmp_path / 'data'}")
    shares, _ = told(out)
    (model,) = export(out, client="0")
    test = x[20:30]
    rows = {"bytes": test, "fractions": (test / 255).astype(np.float32), "last": test.reshape(10, 4, 4, 1),
            "flat": test.reshape(10, 16)}  # fmt: skip
    for name, these in rows.items():
        np.savez(tmp_path / f"{name}.npz", x=these, y=y[20:30])
        assert right(capsys, tmp_path / f"{name}.npz", model) == (round(10 * shares[0]), 10)
    np.savez(tmp_path / "floats.npz", x=x.astype(np.float32), y=y)
    assert "trained on pixels" in refused(capsys, tmp_path / "floats.npz", model)
    numbers = run(tmp_path / "numbers", "data=digits", "data.num_clients=3", "data.limit=200")
    (model,) = export(numbers, client="0")
    np.savez(tmp_path / "b.npz", x=np.zeros((2, 1, 8, 8), np.uint8))
    if load_exported(model).pipeline.kind == "numbers":
        assert "trained on numbers" in refused(capsys, tmp_path / "b.npz", model)


@pytest.mark.parametrize(
    "words",
    [
        ["data.partition=classes", "data.classes_per_client=3"],
        ["data.partition=classes", "data.classes_per_client=3", "data.label_space=local"],
        ["data.partition=rotations", "data.unit_norm=true"],
        ["data.partition=permutations", "data.standardise=true"],
        ["data.partition=iid", "data.normalise=true", "dtype=float64"],
    ],
)
def test_every_partition_and_scale_is_in_the_file(tmp_path, capsys, words):
    """The rows are the set's own, the answers its classes: what a client makes of them is exported."""
    out = run(tmp_path / "out", "data=digits", "data.num_clients=4", "data.limit=600", *words)
    shares, sizes = told(out)
    stored = open_run(out)
    clients = stored.parts.federation.client
    for k in range(4):
        personal_model(stored, k).write(tmp_path)
        index = clients.splits.test[k]
        names = np.array(clients.pipeline.classes)[clients.raw.labels[index]]
        np.savez(tmp_path / f"{k}.npz", x=clients.raw.rows(index), y=names)
        found = right(capsys, tmp_path / f"{k}.npz", tmp_path / f"client_{k}.safetensors")
        assert found == (round(shares[k] * sizes[k]), sizes[k]), k


def test_samples_that_are_seen_in_several_ways_are_refused(tmp_path, capsys):
    words = ["data=digits", "data.num_clients=4", "data.limit=600", "data.partition=rotations"]
    out = run(tmp_path / "out", *words, "method=fedavg")
    (model,) = export(out)
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 1, 8, 8), np.float32))
    assert "its own way" in refused(capsys, tmp_path / "x.npz", model)
    assert load_exported(model)(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_a_models_state_dict_is_its_parameters(tables, tmp_path):
    stored = open_run(tables / "out")
    found = [personal_model(stored, k) for k in range(3)] + list(whole_models(stored).values())
    assert len(found) == 4  # the shared body too
    for model in found:
        state = model.state_dict()
        assert state.keys() == model.params.keys()
        assert all(torch.equal(state[n], model.params[n]) for n in state)
        x, before = torch.randn(5, 2), None
        if model.about["kind"] == "model":
            before = model(x)
            model.load_state_dict({n: v + 1 for n, v in state.items()})
            assert not torch.equal(model(x), before)
            assert model.double().params["head.weight"].dtype == torch.float64


def test_a_diverged_model_predicts_nothing(tables, tmp_path, capsys):
    model = personal_model(tables / "out", 0)
    model.load_state_dict({n: v * np.nan for n, v in model.state_dict().items()})
    model.write(tmp_path)
    assert "diverged" in refused(capsys, tables / "data" / "anna" / "test.csv", tmp_path / "client_0")


def test_a_file_that_lacks_a_parameter_is_no_model(tables, tmp_path):
    from safetensors.torch import load_file, save_file

    from fedpers.core.errors import CheckpointError

    path = personal_model(tables / "out", 0).write(tmp_path)
    kept = load_file(path)
    kept.pop("head.bias")
    save_file(kept, path)
    with pytest.raises(CheckpointError, match=r"head\.bias"):
        load_exported(path)


def test_arrays_of_a_program_are_exported_too(tmp_path, capsys):
    import fedpers

    rows = [table(60, k) for k in range(3)]
    federation = Federation.from_arrays({f"c{k}": t for k, t in enumerate(rows)}, target="result")
    assert isinstance(federation, Federation)
    found = fedpers.run(method="fedavg", data=federation, model="mlp", rounds=2, out=str(tmp_path / "out"))
    model = found.model("global")
    assert model.state_dict().keys() == model.params.keys()
    assert model.pipeline.columns == ("age", "dose") and model.pipeline.classes == ("ill", "well")
    path = model.write(tmp_path)
    rows[0].to_csv(tmp_path / "new.csv", index=False)
    assert right(capsys, tmp_path / "new.csv", path)[1] == 60


@pytest.mark.parametrize("method, model", [("fedper", "--client 0"), ("fedavg", "--model global")])
@pytest.mark.parametrize("part", ["model.trainable=[out.*]", "model.lora={rank:2}"])
def test_a_pretrained_base_is_in_the_file(part, method, model, tmp_path, monkeypatch, capsys):
    """Predicted elsewhere, without the file of weights, as beside it."""
    rng, elsewhere = np.random.default_rng(0), tmp_path / "elsewhere"
    (tmp_path / "data").mkdir()
    elsewhere.mkdir()
    for name in ("anna", "ben"):
        x = rng.normal(size=(60, 16)).astype("float32")
        np.savez(tmp_path / "data" / f"{name}.npz", x=x, y=x[:, :3].argmax(1))
    monkeypatch.chdir(tmp_path)
    save_file(Plain().state_dict(), "base.safetensors")
    words = ["model=module", "model.path=tests.own_nets:Plain", "model.weights=base.safetensors", part]
    execute(
        compose.load([f"method={method}", *words, *FAST, "data=files", f"data.path={tmp_path / 'data'}"]),
        Path("run"),
    )
    assert main(["export", "run", *model.split()]) == 0
    (file,) = (tmp_path / "run" / "export").glob("*.json")
    rows = tmp_path / "data" / "anna.npz"
    (tmp_path / "base.safetensors").rename(tmp_path / "moved.safetensors")
    monkeypatch.chdir(elsewhere)
    found = right(capsys, rows, file)
    held = load_exported(file)
    with np.load(rows) as given:
        x, y = torch.from_numpy(given["x"]), given["y"]
    base = load_file(tmp_path / "moved.safetensors")
    assert any(torch.equal(v, base["hidden.weight"]) for v in held.content.values())  # frozen, in the file
    plain = Plain()
    plain.load_state_dict(held.model.network.plain_state(held.content))
    assert found == (int((plain(x).argmax(1).numpy() == y).sum()), 60)
    assert main(["export", str(tmp_path / "run"), *model.split(), "--out", "again"]) == 2  # needs the base
    assert f"there is no such file in {elsewhere}, where you are" in capsys.readouterr().err


def exported(folder, *words):
    out = run(folder / "run", *words)
    assert main(["export", str(out), "--client", "all"]) == 0
    return out, [out / "export" / f"client_{k}.safetensors" for k in range(2)]


def test_columns_of_a_table_in_the_package_are_known_by_scikit_learns_names(tmp_path, capsys):
    """In whatever order: by their places they would be another patient's numbers."""
    frame = load_breast_cancer(as_frame=True).frame
    words = ["data=breast_cancer", "data.num_clients=2", "data.partition=iid", "data.standardise=true"]
    out, models = exported(tmp_path, *words)
    for k, (accuracy, count) in enumerate(zip(*told(out), strict=True)):
        test = (
            open_run(out).parts.federation.client(k).test
        )  # standardised, so rows are found by their targets
        model = load_exported(models[k])
        x = model.inputs(frame[list(model.pipeline.columns)].to_numpy())
        rows = [int((x - row).abs().sum(1).argmin()) for row in test.x]
        file = tmp_path / f"{k}.csv"
        frame.iloc[rows].sample(frac=1, axis=1, random_state=k).to_csv(file, index=False)
        assert right(capsys, file, models[k]) == (round(accuracy * count), count)
    frame.drop(columns="mean area").to_csv(tmp_path / "less.csv", index=False)
    assert "no mean area" in refused(capsys, tmp_path / "less.csv", models[0])


def test_a_model_that_knows_no_names_takes_numbered_columns_alone(tmp_path, capsys):
    words = ["data=digits", "data.num_clients=2", "data.classes_per_client=10"]
    out, models = exported(tmp_path, *words)
    test = open_run(out).parts.federation.client(0).test
    (accuracy, *_), (count, *_) = told(out)
    table = pd.DataFrame(test.x.numpy().reshape(len(test.y), 64), columns=[f"p{i}" for i in range(1, 65)])
    file = tmp_path / "rows.csv"
    mixed = table.assign(y=test.y.numpy()).sample(frac=1, axis=1, random_state=0)
    mixed.to_csv(file, index=False)
    assert right(capsys, file, models[0], "--target", "y") == (round(accuracy * count), count)
    said = refused(capsys, file, models[0])
    assert "numbers without names" in said and "--target names the column of the answers" in said
    table.rename(columns={"p3": "third"}).to_csv(file, index=False)
    assert "order of p1, p2, p4, p5, p6, ... is not known" in refused(capsys, file, models[0])
