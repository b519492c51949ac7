"""Everything between raw rows and tensors is one record, and columns are matched by their names."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

from fedpers.core.data import Federation
from fedpers.core.errors import DataError
from fedpers.core.pipeline import Pipeline
from fedpers.datasets.config import DataConfig
from fedpers.datasets.federation import load_federation

RNG = np.random.default_rng(0)
TABLE = pd.DataFrame({"a": RNG.normal(size=40), "b": RNG.normal(size=40) + 500, "label": np.arange(40) % 2})


def test_a_pipeline_is_kept_as_json_without_loss():
    numbers = RNG.normal(size=(3, 1, 1)), 1 / RNG.random((3, 1, 1))
    kept = Pipeline("bytes", ("a", "b"), "y", ("cat", "dog"), *numbers, unit_norm=True)
    again = Pipeline.of(json.loads(json.dumps(kept.plain())))
    x = RNG.integers(0, 256, (5, 3, 4, 4)).astype(np.uint8)
    assert torch.equal(kept.inputs(x, torch.float64), again.inputs(x, torch.float64))
    assert (again.kind, again.columns, again.target, again.classes) == (
        "bytes",
        ("a", "b"),
        "y",
        ("cat", "dog"),
    )


def test_inputs_are_scaled_as_written():
    mean, factor = np.array([1.0, 2.0]), np.array([2.0, 0.5])
    x = np.array([[3.0, 2.0], [1.0, 10.0]])
    scaled = Pipeline(mean=mean, factor=factor)
    assert scaled.inputs(x, torch.float64).tolist() == [[4, 0], [0, 4]]
    assert Pipeline(mean=mean, factor=factor, unit_norm=True).inputs(x, torch.float64).tolist() == [
        [1, 0],
        [0, 1],
    ]
    assert Pipeline("bytes").inputs(np.array([[255, 51]], np.uint8), torch.float64).tolist() == [[1, 0.2]]
    own = scaled.inputs(x, torch.float64)
    own.zero_()
    assert x[0, 0] == 3


def test_files_tell_their_pipeline(tmp_path):
    for name in ("ben", "anna"):
        TABLE.assign(label=np.resize(["cat", "dog"], 40)).to_csv(tmp_path / f"{name}.csv", index=False)
    cfg = DataConfig(
        name="files", path=str(tmp_path), partition="natural", num_clients=None, standardise=True
    )
    federation = load_federation(cfg, 0)
    kept = federation.pipeline
    assert federation.clients == ("anna", "ben")
    assert (kept.kind, kept.columns, kept.target, kept.classes) == (
        "numbers",
        ("a", "b"),
        "label",
        ("cat", "dog"),
    )
    x = kept.inputs(TABLE[["a", "b"]].to_numpy(), torch.float32)
    rows = {tuple(r) for r in x.tolist()}
    assert {tuple(r) for r in federation.client(0).train.x.tolist()} <= rows


@pytest.mark.parametrize("form", ["table", "pair", "records", "splits"])
def test_arrays_with_names_are_matched_by_them(form):
    other = TABLE[["label", "b", "a"]]
    forms = {
        "table": (TABLE, other),
        "pair": [(t.drop(columns="label"), t["label"]) for t in (TABLE, other)],
        "records": [t.to_records(index=False) for t in (TABLE, other)],
        "splits": [{"train": TABLE, "test": other}] * 2,
    }
    federation = Federation.from_arrays(list(forms[form]))
    assert federation.pipeline.columns == ("a", "b")
    for k in (0, 1):
        parts = federation.client(k)
        for part in (parts.train, parts.test):
            assert part.x[:, 0].abs().max() < 10 and part.x[:, 1].min() > 400
    assert federation.clients == ()


def test_arrays_with_other_names_are_refused():
    with pytest.raises(DataError, match=r"client '1': has other columns than client '0' .*b, height"):
        Federation.from_arrays([TABLE, TABLE.rename(columns={"b": "height"})])
