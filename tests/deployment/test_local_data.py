"""A client's own data: what each source gives, and one clear error for each thing that is wrong."""

import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedpers.config import compose
from fedpers.config.run_config import to_mapping
from fedpers.core.errors import ConfigError, DataError
from fedpers.datasets.config import DataConfig
from fedpers.datasets.federation import load_federation
from fedpers.deploy import resident
from fedpers.deploy.local_data import load_local
from fedpers.deploy.orders import Order
from fedpers.deploy.private_state import Recall
from fedpers.flower.messages import Header

CFG = DataConfig(
    name="device", partition="natural", num_clients=None, input_shape=(3,), num_classes=2, test_fraction=0.25
)
X = np.arange(36, dtype=np.float32).reshape(12, 3)
Y = np.arange(12) % 2


def load(source: object, target: str | None = None, cfg: DataConfig = CFG) -> Any:
    return load_local(str(source), target, cfg, 0, torch.float32)


def sizes(data: Any) -> tuple[int, int, int]:
    return len(data.train), len(data.valid), len(data.test)


def table(path: Path) -> Path:
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=Y)
    frame.to_csv(path, index=False) if path.suffix == ".csv" else frame.to_parquet(path)
    return path


@pytest.fixture
def module() -> Iterator[types.ModuleType]:
    made = types.ModuleType("their_data")
    sys.modules["their_data"] = made
    yield made
    del sys.modules["their_data"]


@pytest.mark.parametrize("kind", ["x.npz", "x.csv", "x.parquet"])
def test_every_kind_of_file_gives_the_same_samples(tmp_path: Path, kind: str) -> None:
    if kind == "x.parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / kind
    np.savez(path, x=X, y=Y) if kind == "x.npz" else table(path)
    data = load(path, "y")
    assert sizes(data) == (9, 0, 3)
    rows = torch.cat([data.train.x, data.test.x])
    assert torch.equal(rows[rows[:, 0].argsort()], torch.from_numpy(X))
    assert data.train.y.dtype == torch.int64 and data.train.x.dtype == torch.float32


def test_the_cut_depends_on_the_seed_alone(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=X, y=Y)
    first, second = load(tmp_path / "x.npz"), load(tmp_path / "x.npz")
    other = load_local(str(tmp_path / "x.npz"), None, CFG, 1, torch.float32)
    assert torch.equal(first.test.x, second.test.x) and not torch.equal(first.test.x, other.test.x)
    shared = set(first.train.x[:, 0].tolist()) & set(first.test.x[:, 0].tolist())
    assert not shared


def test_given_splits_are_taken_as_they_are(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", train_x=X[:8], train_y=Y[:8], test_x=X[8:], test_y=Y[8:])
    data = load(tmp_path / "x.npz")
    assert sizes(data) == (8, 0, 4) and torch.equal(data.train.x, torch.from_numpy(X[:8]))


def test_a_folder_holds_a_file_a_split(tmp_path: Path) -> None:
    np.savez(tmp_path / "train.npz", x=X[:8], y=Y[:8])
    table(tmp_path / "test.csv")
    assert sizes(load(tmp_path, "y")) == (8, 0, 12)


def test_a_function_of_the_owner(module: types.ModuleType) -> None:
    module.load = lambda: (X, Y)  # type: ignore[attr-defined]
    module.splits = lambda: {"train": (X, Y), "test": (X[:2], Y[:2])}  # type: ignore[attr-defined]
    assert sizes(load("their_data:load")) == (9, 0, 3)
    assert sizes(load("their_data:splits")) == (11, 1, 2)  # a tenth of the training samples for validation


def test_a_function_may_return_tables_whose_columns_have_names(module: types.ModuleType) -> None:
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    module.pair = lambda: (frame[["c", "a", "b"]], Y)  # type: ignore[attr-defined]
    module.table = lambda: frame.assign(y=Y)[["b", "y", "c", "a"]]  # type: ignore[attr-defined]
    module.arrays = lambda: (X, Y)  # type: ignore[attr-defined]
    want = load("their_data:arrays")
    for name in ("pair", "table"):
        found = load(f"their_data:{name}", "y")
        assert torch.equal(found.train.x, want.train.x) and torch.equal(found.train.y, want.train.y)


def test_masked_entries_of_a_function_are_missing_ones(module: types.ModuleType) -> None:
    module.masked = lambda: (np.ma.masked_array(X, mask=X > 1), Y)  # type: ignore[attr-defined]
    with pytest.raises(DataError, match="NaN"):
        load("their_data:masked")


def bad(**arrays: Any) -> Any:
    def make(folder: Path) -> Path:
        np.savez(folder / "x.npz", **arrays)
        return folder / "x.npz"

    return make


def text(name: str, content: str) -> Any:
    def make(folder: Path) -> Path:
        (folder / name).write_text(content)
        return folder / name

    return make


def two_of_a_kind(folder: Path) -> Path:
    np.savez(folder / "train.npz", x=X, y=Y)
    table(folder / "train.csv")
    return folder


WRONG = {
    "no such file": (lambda f: f / "nothing.csv", "no such file"),
    "kind": (text("x.txt", ""), "unknown kind of file"),
    "no zip": (text("x.npz", "no zip"), "cannot be read"),
    "empty": (text("x.csv", ""), "cannot be read"),
    "target": (text("x.csv", "a,b\n1,2\n"), "no target column 'y'; there are a, b"),
    "words": (text("x.csv", "a,y\nred,2\n"), "column a holds text .* \\(a, row 1: 'red'\\)"),
    "names": (bad(a=X), "has a; expected x and y"),
    "lengths": (bad(x=X, y=Y[:5]), "one y a row"),
    "shape": (bad(x=X[:, :2], y=Y), r"shape \(2,\).*data.input_shape=\[3\]"),
    "nan": (bad(x=X * np.nan, y=Y), "NaN"),
    "label": (bad(x=X, y=Y + 1), r"label 2 is none of 0\.\.1"),
    "fraction": (bad(x=X, y=Y + 0.5), "label 0.5"),
    "strings": (bad(x=X.astype(str), y=Y), "give numbers"),
    "pickle": (bad(x=X.astype(object), y=Y), "cannot be read"),
    "none left": (bad(x=X[:1], y=Y[:1]), "no train samples"),
    "no test": (bad(train_x=X, train_y=Y), "give train and test"),
    "two": (two_of_a_kind, "keep one"),
    "no folder content": (lambda f: f, "has nothing"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_said_once_and_by_name(tmp_path: Path, what: str) -> None:
    make, message = WRONG[what]
    with pytest.raises(DataError, match=message) as caught:
        load(make(tmp_path), "y")
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("source", ["no_such_module:load", "math:nothing", "math:sqrt", "os:getcwd"])
def test_a_function_that_does_not_do_is_named(source: str) -> None:
    with pytest.raises(DataError, match=source):
        load(source)


def test_the_server_has_none_of_it() -> None:
    with pytest.raises(ConfigError, match="engine=deployment"):
        load_federation(CFG, 0)
    assert DataConfig(name="device", partition="natural").check() == [
        "data.name=device needs data.input_shape, the shape of a sample, such as [64]"
    ]


def test_rows_of_a_replaced_file_are_served_at_once(tmp_path: Path) -> None:
    """The roll call counts the samples that the file has now, though the process has answered before."""
    device = ["data=device", "data.input_shape=[3]", "data.num_classes=2", "model=logistic"]
    config = json.dumps(to_mapping(compose.load([*device, "method=fedavg", "engine=deployment"])))
    path = tmp_path / "x.npz"
    order = Order("run", -1, Recall(None, None), 1.0)
    request = {
        "header": {**Header("query")._asdict(), **order.header(), "skeleton": ""},
        "node": {"client": "anna", "data": str(path), "state": str(tmp_path)},
        "config": config,
    }
    counts = []
    for n in (12, 8):
        np.savez(tmp_path / "new.npz", train_x=X[:n], train_y=Y[:n], test_x=X, test_y=Y, valid_x=X, valid_y=Y)
        (tmp_path / "new.npz").replace(path)
        counts += [resident.answer(request, [])[0]["num_train"] for _ in range(2)]
    assert counts == [12, 12, 8, 8]
