"""`fedpers predict` on a device: predictions as of its last evaluation; mistakes are one message."""

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedpers.app import deployed
from fedpers.app.cli import main
from fedpers.core.errors import DataError
from fedpers.deploy import device_grid
from fedpers.deploy.local_data import Expected
from fedpers.deploy.own_model import MODEL
from fedpers.deploy.rows import read_rows
from tests.deployment.fake_link import Link, configs


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a run of PFLEGO on three devices has ended, in `out`."""
    folder = tmp_path_factory.mktemp("site")
    look, device_grid.LOOK_S = device_grid.LOOK_S, 0.01
    try:
        _, cfg = configs("pflego", 3)
        (folder / "out").mkdir()
        deployed.run(cfg, folder / "out", Link(folder, cfg))  # type: ignore[arg-type]
    finally:
        device_grid.LOOK_S = look
    return folder


def new_rows(site: Path, name: str, **more: np.ndarray) -> Path:
    """The test split of site-1, as rows of data."""
    with np.load(site / "data" / "site-1.npz") as file:
        arrays = {"x": file["test_x"], "y": file["test_y"]} | more
    np.savez(site / name, **arrays)
    return site / name


def test_predictions_are_those_of_the_last_evaluation(site: Path) -> None:
    """In another process, from files alone; the accuracy is that of clients.csv."""
    rows, out = new_rows(site, "rows.npz"), site / "predictions.csv"
    command = [sys.executable, "-m", "fedpers", "predict", str(rows), "--state", str(site / "site-1")]
    done = subprocess.run(
        [*command, "--out", str(out)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    table = list(csv.DictReader(out.open(newline="")))
    with np.load(rows) as file:
        y = file["y"]
    right = float(np.mean([int(r["prediction"]) == v for r, v in zip(table, y, strict=True)]))
    clients = list(csv.DictReader((site / "out" / "clients.csv").open(newline="")))
    assert right == pytest.approx(float(clients[1]["accuracy"]), abs=1e-6)
    assert f"{right:.2%} of {len(y)} rows are right" in done.stderr
    assert [sum(float(r[f"p{c}"]) for c in range(10)) for r in table] == pytest.approx([1.0] * len(y))


def test_the_model_is_its_owners_alone(site: Path) -> None:
    models = list(site.glob(f"site-*/**/{MODEL}"))
    assert len(models) == 3 and {p.stat().st_mode & 0o777 for p in models} == {0o600}


def test_mistakes_are_one_message(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = ["--state", str(site / "site-1")]
    good = str(new_rows(site, "rows.npz"))
    wide = str(new_rows(site, "wide.npz", x=np.zeros((2, 65)), y=np.zeros(2)))
    classes = str(new_rows(site, "classes.npz", x=np.zeros((1, 64)), y=np.array([10])))
    pixels = str(new_rows(site, "pixels.npz", x=np.zeros((1, 64), np.uint8), y=np.zeros(1)))
    for words, text in [
        ([pixels, *state], "holds uint8, and the model was trained on numbers as they stand"),
        ([good, "--state", str(site / "data")], "no model of client (any), run (any)"),
        ([good, *state, "--client", "nobody"], "no model of client nobody"),
        ([wide, *state], "a sample has shape (65,), the run expects data.input_shape=[64]"),
        ([classes, *state], "label 10 is none of 0..9"),
        ([str(site / "absent.csv"), *state], "there is no such file"),
        ([good, *state, "--model", "m.safetensors"], "--model names an exported file"),
    ]:
        assert main(["predict", *words]) == 2
        told = capsys.readouterr()
        assert text in told.err and told.err.count("\n") == 1 and not told.out


def test_columns_are_found_by_name_and_others_are_refused(tmp_path: Path) -> None:
    expected = Expected((2,), "classification", 3)
    path = tmp_path / "rows.csv"
    path.write_text("b,y,a\n2,1,1\n4,0,3\n")
    x, y = read_rows(path, ("a", "b"), "y", expected)
    assert x.tolist() == [[1, 2], [3, 4]] and y is not None and y.tolist() == [1, 0]
    path.write_text("b,a\n2,1\n")
    assert read_rows(path, ("a", "b"), "y", expected)[1] is None
    path.write_text("b,c\n2,1\n")
    with pytest.raises(
        DataError, match=r"other columns than those of training \(no a; unknown: c\); give the same"
    ):
        read_rows(path, ("a", "b"), "y", expected)
