"""What a deployment sends of a model with a frozen base: what is trained, and no byte of the base."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from fedpers.config.compose import load
from fedpers.deploy import device_grid, roll_call
from fedpers.learning.model import build_model
from tests.deployment.fake_link import Link, on_devices, unbundled

ROUNDS, DEVICES, SHAPE = 2, 3, (1, 4, 4)


class Counting(Link):
    """Keeps the arrays that go either way."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.arrays: list[np.ndarray] = []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        whole = list(messages)
        self.arrays += [a for m in whole for a in unbundled(m.content)]
        return super().push_messages(whole)

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        found = super().pull_messages(ids)
        self.arrays += [a for m in found if not m.has_error() for a in unbundled(m.content)]
        return found


def stored(folder: Path) -> None:
    """Three devices' samples."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for k in range(DEVICES):
        x, y = rng.normal(size=(12, *SHAPE)).astype(np.float32), np.arange(12) % 3
        named = {f"{split}_{n}": v for split in ("train", "valid", "test") for n, v in (("x", x), ("y", y))}
        np.savez(folder / f"site-{k}.npz", **named)


@pytest.mark.parametrize(("method", "heads"), [("fedavg", True), ("fedper", False)])
def test_adapters_are_sent_and_the_base_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, heads: bool
) -> None:
    monkeypatch.setattr(device_grid, "LOOK_S", 0.01)
    monkeypatch.setattr(roll_call, "LOOK_S", 0.01)
    options = {"path": "tests.own_nets:Pretrained", "lora": {"rank": 2, "targets": ["hidden"]}}
    words = ["model=module", f"model.path={options['path']}", "model.lora={rank:2,targets:[hidden]}"]
    device = ["data=device", "data.input_shape=[1,4,4]", "data.num_classes=3", f"data.num_clients={DEVICES}"]
    more = ["engine=deployment", "engine.deadline_s=6", f"rounds={ROUNDS}"]
    cfg = load([f"method={method}", *words, *device, *more])
    stored(tmp_path / "data")
    policy = tmp_path / "policy.toml"
    policy.write_text(f"modules = ['{options['path']}']\n")
    link = Counting(tmp_path, cfg, data=tmp_path / "data")
    link.options["policy"] = str(policy)
    on_devices(link, cfg, tmp_path / "out")

    net = build_model("module", input_shape=SHAPE, num_outputs=3, task="classification", **options)
    trained = net.init_trained(0)
    shared = sum(v.nbytes for k, v in trained.items() if heads or not net.is_head(k))
    sent = sum(a.nbytes for a in link.arrays if a.dtype == np.float32)
    assert sent == DEVICES * ROUNDS * 3 * shared  # a round: an order, its reply, and what to predict with
    frozen = [v.numpy() for v in net.constants.values()]
    assert frozen and not [a for a in link.arrays for f in frozen if f.tobytes() in a.tobytes()]
