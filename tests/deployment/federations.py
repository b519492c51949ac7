"""Two federations in files, of tables and of images, and what a model that left them says of their files."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from fedpers.app.cli import main
from fedpers.app.export import export

TABLES = ["method=fedavg", "model=mlp", "model.hidden=[8]", "rounds=3", "seed=3", "eval_every=0",
          "method.local.lr=0.3", "data.standardise=federated"]  # fmt: skip
IMAGES = TABLES
SHAPES = {
    "tables": ["data.input_shape=[2]", "data.num_classes=2"],
    "images": ["data.input_shape=[3,6,6]", "data.num_classes=2", "data.class_names=[cat,dog]"],
}
RUNS = {"tables": TABLES, "images": IMAGES}


def tables(folder: Path) -> None:
    """Three clients with train.csv and test.csv: other orders of columns, one column far from the other."""
    rng = np.random.default_rng(0)
    for k, names in enumerate((["age", "dose", "y"], ["dose", "y", "age"], ["y", "age", "dose"])):
        for split, n in (("train", 60 + 10 * k), ("test", 25 + k)):
            age, dose = rng.normal(size=n) * 50 + 1000, rng.normal(size=n) * 0.01
            y = ((age - 1000) / 50 + dose / 0.01 + rng.normal(size=n) * 0.3 > 0).astype(int)
            path = folder / f"site-{k}" / f"{split}.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            pd.DataFrame({"age": age, "dose": dose, "y": y})[names].to_csv(path, index=False)


def images(folder: Path) -> None:
    """Three clients with train/cat/1.png and so on; dogs are brighter, as a rule."""
    rng = np.random.default_rng(0)
    for k in range(3):
        for split, n in (("train", 40 + k), ("test", 20 + k)):
            for i in range(n):
                pixels = rng.integers(0, 180, (6, 6, 3)) + 20 * (i % 2)
                path = folder / f"site-{k}" / split / ("cat", "dog")[i % 2] / f"{i}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels.astype(np.uint8)).save(path)


MAKE = {"tables": tables, "images": images}


def exported_is_right(run: Path, data: Path, capsys: object) -> list[tuple[int, int]]:
    """How many rows of each client's test files the run's exported model gets right, of how many."""
    (model, *_) = export(run, "global")
    found = []
    for k in range(3):
        test = data / f"site-{k}" / "test"
        rows = test if test.is_dir() else test.with_suffix(".csv")
        capsys.readouterr()  # type: ignore[attr-defined]
        more = [] if test.is_dir() else ["--target", "y"]
        assert main(["predict", str(rows), "--model", str(model), "--out", str(run / "said.csv"), *more]) == 0
        said = capsys.readouterr().err  # type: ignore[attr-defined]
        share, n = re.search(r"([\d.]+)% of (\d+) rows", said).groups()  # type: ignore[union-attr]
        found.append((round(float(share) / 100 * int(n)), int(n)))
    return found


def told(run: Path) -> list[tuple[int, int]]:
    """The same of the run's own clients.csv."""
    table = pd.read_csv(run / "clients.csv", float_precision="round_trip")
    return [(round(a * n), int(n)) for a, n in zip(table["accuracy"], table["num_test"], strict=True)]
