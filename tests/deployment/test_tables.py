"""Tables on devices are those of a simulation: the same columns, the same scale, the same bits."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedpers.app.run import execute as run_inside
from fedpers.config.compose import load
from fedpers.core.errors import DataError
from fedpers.deploy import device_grid
from tests.deployment import fake_link
from tests.deployment.fake_link import Link, assert_equal_states, looped

DEVICE = ["data=device", "data.input_shape=[2]", "data.num_classes=2", "data.num_clients=3"]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_grid, "LOOK_S", 0.01)


def tables(folder: Path) -> Path:
    """Three clients' tables: other orders of columns, other sizes, one with holes."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for k, names in enumerate((["a", "b", "label"], ["b", "label", "a"], ["label", "a", "b"])):
        n = 40 + 10 * k
        a = rng.normal(size=n)
        frame = pd.DataFrame({"a": a, "b": rng.normal(size=n) * 50 + 1000, "label": (a > 0).astype(int)})
        frame.loc[: k - 1, "a"] = np.nan
        frame[names].to_csv(folder / f"site-{k}.csv", index=False)
    return folder


@pytest.mark.parametrize("method", ["fedavg", "pflego"])
def test_a_federation_of_tables_gives_the_bits_of_a_run_in_process(tmp_path: Path, method: str) -> None:
    data = tables(tmp_path / "data")
    same = [f"method={method}", "model=mlp", "rounds=3", "seed=3", "data.missing=drop"]
    scale = "data.standardise=federated"
    inside = load([*same, scale, "data=files", f"data.path={data}", "engine.runner=loop"])
    outside = load([*same, scale, *DEVICE, "engine=deployment", "engine.deadline_s=6"])
    run_inside(looped(inside), tmp_path / "loop")
    link = Link(tmp_path, outside, data=data)
    link.options["target"] = "label"
    out = fake_link.on_devices(link, outside, tmp_path / "devices")
    assert_equal_states(tmp_path / "loop", out)
    assert (tmp_path / "loop" / "clients.csv").read_bytes() == (out / "clients.csv").read_bytes()
    notes = json.loads((out / "summary.json").read_text())["notes"]
    assert "3 of 150 rows lack a value" in " ".join(notes)


def test_devices_with_other_columns_are_refused_by_name(tmp_path: Path) -> None:
    data = tables(tmp_path / "data")
    path = data / "site-2.csv"
    pd.read_csv(path).rename(columns={"b": "height"}).to_csv(path, index=False)
    cfg = load(
        [
            "method=fedavg",
            "rounds=1",
            "data.missing=drop",
            *DEVICE,
            "engine=deployment",
            "engine.deadline_s=6",
        ]
    )
    link = Link(tmp_path, cfg, data=data)
    link.options["target"] = "label"
    with pytest.raises(DataError, match=r"site-2 has other columns than site-0 \(b, height"):
        fake_link.on_devices(link, cfg, tmp_path / "out")
