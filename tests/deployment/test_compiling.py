"""A device whose compiler is slow answers all the same, and nothing is left behind."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedpers.core import compiled, sums
from fedpers.deploy import device_grid, resident, roll_call
from fedpers.learning.kernels import library as kernels
from tests.deployment.fake_link import Link, configs, on_devices
from tests.deployment.matrix import fault
from tests.test_compiled import left, slow_compiler

pytestmark = pytest.mark.slow  # the kernels are compiled twice


@pytest.fixture
def without_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("FEDPERS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compiled, "patience", compiled.Patience())
    for known in (sums.library, kernels.library, resident._seat):
        known.cache_clear()
    yield
    for known in (sums.library, kernels.library, resident._seat):
        known.cache_clear()


@fault(15)
def test_orders_are_answered_while_the_kernels_are_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_kernels: None
) -> None:
    monkeypatch.setattr(device_grid, "LOOK_S", 0.01)
    monkeypatch.setattr(roll_call, "LOOK_S", 0.01)
    slow_compiler(tmp_path, monkeypatch, 1.0)
    compiled.patience.seconds = 0.05
    _, cfg = configs("fedavg", 2)
    out = on_devices(Link(tmp_path, cfg), cfg, tmp_path / "out")
    assert json.loads((out / "summary.json").read_text())["status"] == "finished"
    assert len(compiled.patience.pending) == 2  # both were begun when the roll was called
    until = time.monotonic() + 240
    while left(tmp_path) != [".so", ".so"] and time.monotonic() < until:
        time.sleep(0.2)
    assert left(tmp_path) == [".so", ".so"] and compiled.patience.rewarded


def test_a_device_has_its_kernels_before_it_says_that_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_kernels: None
) -> None:
    slow_compiler(tmp_path, monkeypatch, 0.0)
    _, cfg = configs("fedavg", 1)
    link = Link(tmp_path, cfg)

    def stop(who: str, header: dict[str, object], reply: object) -> None:
        assert header["kind"] == "query" and left(tmp_path) == [".so", ".so"]
        raise KeyboardInterrupt

    link.fault = stop  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        on_devices(link, cfg, tmp_path / "out")
