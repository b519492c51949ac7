"""Simulation = device = what leaves the run: the same clients.csv to the bit, the same accuracy outside."""

from pathlib import Path

import pytest
from device_link import Local

from fedpers.app import deployed
from fedpers.app.run import execute
from fedpers.app.run_folder import store_config
from fedpers.config.compose import load
from fedpers.deploy import device_grid, roll_call
from tests.deployment.fake_link import Link, looped
from tests.deployment.federations import MAKE, RUNS, SHAPES, exported_is_right, told


def simulated(tmp_path: Path, what: str, data: Path) -> Path:
    source = ["data=files", f"data.path={data}", *(["data.target=y"] if what == "tables" else [])]
    execute(looped(load([*RUNS[what], *source])), tmp_path / "inside")
    return tmp_path / "inside"


def assert_same(inside: Path, outside: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (inside / "clients.csv").read_bytes() == (outside / "clients.csv").read_bytes()
    expected = told(inside)
    assert exported_is_right(outside, data, capsys) == exported_is_right(inside, data, capsys) == expected
    shares = [right / n for right, n in expected]
    assert 0.6 < sum(shares) / 3 < 0.999  # a run that learned nothing, or all, would prove little


@pytest.mark.parametrize("what", list(MAKE))
def test_in_process_and_on_devices_behind_a_fake_link(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(device_grid, "LOOK_S", 0.01)
    monkeypatch.setattr(roll_call, "LOOK_S", 0.01)
    MAKE[what](tmp_path / "data")
    device = ["data=device", *SHAPES[what], "data.num_clients=3", "engine=deployment", "engine.deadline_s=6"]
    cfg = load([*RUNS[what], *device])
    out = tmp_path / "out"
    out.mkdir()
    store_config(cfg, out)
    link = Link(tmp_path, cfg, data=tmp_path / "data")
    link.options |= {"target": "y"} if what == "tables" else {}
    deployed.run(cfg, out, link)  # type: ignore[arg-type]
    assert_same(simulated(tmp_path, what, tmp_path / "data"), out, tmp_path / "data", capsys)


@pytest.mark.deployment
@pytest.mark.slow
def test_in_process_and_over_three_real_supernodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of tables: what is read on a device of images is read above too, by the same program."""
    what, data, out = "tables", tmp_path / "data", tmp_path / "out"
    MAKE[what](data)
    link = Local(tmp_path, 3, files=[data / f"site-{k}" for k in range(3)], target="y")
    try:
        run = link.run(out, *RUNS[what], "engine.deadline_s=300", shape=SHAPES[what])
        assert run.wait(timeout=1200) == 0, (tmp_path / "superlink.log").read_text()[-4000:]
    finally:
        link.close()
    assert_same(simulated(tmp_path, what, data), out, data, capsys)
