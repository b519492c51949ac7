"""What to copy for a backup is enough: a run goes on from its run directory and the devices' states."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedpers.app import deployed
from fedpers.app.run import execute as run_inside
from fedpers.core.errors import FedpersError
from fedpers.deploy import device_grid, resident, roll_call
from tests.deployment.fake_link import Link, assert_equal_states, clients_of, configs, looped, on_devices


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_grid, "LOOK_S", 0.01)
    monkeypatch.setattr(roll_call, "LOOK_S", 0.01)


def crash_at_4(who: str, header: dict[str, Any], reply: Any) -> Any:
    if header["t"] == 4 and header["kind"] == "evaluate":
        raise KeyboardInterrupt
    return reply


def interrupted(folder: Path, cfg: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        on_devices(Link(folder, cfg, crash_at_4), cfg, folder / "out")
    resident._store.cache_clear()


def go_on(folder: Path, cfg: Any) -> Path:
    out = folder / "out"
    deployed.run(dataclasses.replace(cfg, resume=str(out)), out, Link(folder, cfg))  # type: ignore[arg-type]
    return out


def test_a_run_goes_on_elsewhere_from_copies_of_its_folder_and_the_devices_states(tmp_path: Path) -> None:
    inside, outside = configs("scd", 6, "checkpoint_every=2")
    run_inside(looped(inside), tmp_path / "inside")
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    interrupted(first, outside)
    shutil.copytree(first, second)
    shutil.rmtree(first)
    out = go_on(second, outside)
    assert_equal_states(tmp_path / "inside", out)
    assert clients_of(tmp_path / "inside") == clients_of(out)


def test_without_the_devices_states_each_says_what_it_has_lost(tmp_path: Path) -> None:
    _, outside = configs("scd", 6, "checkpoint_every=2")
    interrupted(tmp_path, outside)
    for k in range(3):
        shutil.rmtree(tmp_path / f"site-{k}")
    with pytest.raises(FedpersError, match=r"site-0: .*has lost its state of round"):
        go_on(tmp_path, outside)
