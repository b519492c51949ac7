"""Private fields of every method appear in no message, looked for in the bytes that Flower would send.

Devices answer with the code that they run in earnest, their states lie in files, and after each answer the
private fields in these files get planted numbers. What is searched for is every pair of neighbouring numbers
of a private field, by rows and by columns, in both precisions: a part of it, transposed or converted, is
found as well as the whole.
"""

import dataclasses
import importlib.metadata
import itertools
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from fedpers.app.build import assemble
from fedpers.app.deployed import federation_of
from fedpers.app.public import public_samples
from fedpers.config.compose import load
from fedpers.config.registry import METHODS
from fedpers.config.run_config import RunConfig
from fedpers.core.pytree import leaves
from fedpers.core.serialization import read_record, write_record
from fedpers.deploy import device_grid, resident
from fedpers.deploy.device_grid import DeviceGrid
from fedpers.deploy.ledger import Ledger
from fedpers.learning.optimizers import LocalConfig
from tests.deployment.fake_link import Link

SHARED = {  # fields of states that are not private, and why their numbers may be on the wire
    "fedcp": {"own": "its head, which is in the mean of heads that it sends"},
    "fedfomo": {"before": "the model that it was sent", "phi": "its preferences, which choose its peers"},
    "federico": {"phi": "its model, which is its reply", "scores": "its losses", "opt": "an optimiser's"},
    "fedamp": {"w": "its model, which is its reply"},
    "pfedgraph": {"w": "its model, which is its reply"},
    "fedrecon": {"initial": "the first head, which all clients have"},
    "fedsoft": {"w": "its model, which is its reply", "opt": "kept by its optimiser; never part of a record"},
    "l2sgd": {"x": "its model, which is its reply"},
    "scaffold": {"c": "its control variate, whose change is sent"},
    "moon": {"previous": "its last model, which was its reply"},
    "fedas": {"body": "its body, which was its reply", "came": "whether it came"},
    "fedala": {"own": "its model, which was its reply", "visits": "a count", "passes": "a count"},
}
MORE: dict[str, Any] = {
    # one batch: a weight that no sample of the last one moves is equal in θ and w
    "pfedme": {"local": LocalConfig(batch_size=0)},
    "fedbn": {"private": ["dense1.*"]},
    "federico": {"num_neighbours": 1},
}


class Wire(Link):
    """Notes all bytes both ways, and plants numbers in the private fields of the states."""

    def __init__(self, folder: Path, cfg: RunConfig, data: Path, private: tuple[str, ...]) -> None:
        super().__init__(folder, cfg, data=data)
        self.private, self.sent = private, []
        self.bytes, self.planted = bytearray(), set[Path]()
        self.secrets: dict[str, set[bytes]] = {name: set() for name in private}
        self.rng = np.random.default_rng(16)

    def _push(self, message: Message) -> str:
        self._note(message)
        return super()._push(message)

    def answer(self, name: str, header: dict[str, Any], message: Message) -> Message:
        sent = bytes(self.bytes)
        reply = super().answer(name, header, message)
        assert not reply.has_error(), reply.error.reason
        self._note(reply)
        for path in (self.folder / name).glob("**/[0-9]*.safetensors"):
            self._plant(path, sent)
        return reply

    def _note(self, message: Message) -> None:
        """Add the objects that Flower pushes for a message, as it writes them."""
        for piece in get_all_nested_objects(message).values():
            self.bytes += piece.deflate()

    def _plant(self, path: Path, sent: bytes) -> None:
        """Put recognisable numbers in place of a state's private ones, near enough to go on with.

        Those that were there are looked for too, once they come from planted ones, for a first state is
        often what the server sent; and but for what was `sent` before, such as weights that no sample moves.
        """
        state, grown = read_record(path), path.parent in self.planted
        self.planted.add(path.parent)
        for name in self.private:
            found = getattr(state, name)
            tensors = [x for x in leaves(found) if isinstance(x, torch.Tensor) and x.is_floating_point()]
            natural = (n for x in tensors if grown for n in _needles(x.numpy()))
            self.secrets[name] |= {n for n in natural if n not in sent}
            for x in tensors:
                more, near = (torch.from_numpy(self.rng.uniform(0, 1e-2, x.shape)).to(x.dtype) for _ in "ab")
                x.mul_(1 + near).add_(more)
            self.secrets[name] |= {n for x in tensors for n in _needles(x.numpy())}
            assert self.secrets[name] or not any(x.numel() for x in tensors), f"{name} is not recognisable"
        write_record(path, state)

    def leaked(self) -> set[str]:
        """Private fields of which a part was sent."""
        whole = bytes(self.bytes)
        return {name for name, needles in self.secrets.items() if any(n in whole for n in needles)}


def _needles(values: np.ndarray) -> Iterator[bytes]:
    """What betrays an array: neighbouring numbers, as float32 and as float64; one if it is a single one."""
    telling = np.atleast_2d(values)
    for rows in (telling.reshape(len(telling), -1), telling.reshape(len(telling), -1).T):
        for row in rows:
            for group in itertools.pairwise(row) if values.size > 1 else [tuple(row)]:
                if 0.0 not in group and 1.0 not in group and len(set(group)) == len(group):
                    yield np.array(group, np.float32).tobytes()
                    yield np.array(group, np.float64).tobytes()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three small files, site-0.npz, ..., and one that the server reads."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for k in range(3):
        arrays: dict[str, np.ndarray] = {}
        for split, n in (("train", 12), ("valid", 4), ("test", 4)):
            arrays[f"{split}_x"] = rng.normal(k, 1.0, (n, 5)).astype(np.float32)
            arrays[f"{split}_y"] = rng.permutation(np.arange(n) % 3)
        np.savez(folder / f"site-{k}.npz", **arrays)
    np.savez(folder / "public.npz", x=rng.normal(size=(9, 5)).astype(np.float32), y=np.arange(9) % 3)
    return folder


@pytest.fixture(scope="module")
def base() -> RunConfig:
    """A run on three devices, of any method."""
    device = ["data=device", "data.input_shape=[5]", "data.num_classes=3", "data.num_clients=3"]
    words = ["model=mlp", "model.hidden=[4]", "rounds=2", "seed=3", "engine.deadline_s=60"]
    return load(["method=fedavg", *device, "engine=deployment", *words])


def play(folder: Path, name: str, data: Path, base: RunConfig) -> Wire:
    """Two rounds of a method, evaluations included."""
    row = METHODS[name]
    row.strategy_class()
    read = dataclasses.replace(base.data, public_file=str(data / "public.npz") if row.public else None)
    method = row.config_class()(**MORE.get(name, {}))
    cfg = dataclasses.replace(base, method_name=name, method=method, data=read)
    wire, ledger = Wire(folder, cfg, data, row.client_class().private), Ledger()
    devices = DeviceGrid(wire, cfg, ledger, "cpu")  # type: ignore[arg-type]
    devices.assemble(3)
    parts = assemble(cfg, federation_of(cfg, ledger))
    parts.strategy.public = public_samples(cfg, parts.federation)
    parts.strategy.start(devices, num_rounds=2)  # type: ignore[arg-type]
    assert {h["kind"] for _, h in wire.sent} == {"query", "train", "evaluate"}
    return wire


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three devices are one process here, and no other package's methods are looked for."""
    monkeypatch.setattr(device_grid, "LOOK_S", 0.001)
    monkeypatch.setattr(resident, "_seat", lru_cache(maxsize=3)(resident._seat.__wrapped__))
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [])


@pytest.mark.parametrize("name", sorted(METHODS.keys() - {"central"}))  # devices refuse it: test_central
def test_private_fields_are_in_no_message(tmp_path: Path, data: Path, base: RunConfig, name: str) -> None:
    wire = play(tmp_path, name, data, base)
    assert wire.leaked() == set()
    assert any(wire.secrets.values()) == bool(wire.private)
    states = [read_record(p) for p in tmp_path.glob("site-*/**/[0-9]*.safetensors")]
    fields = {f for state in states if state is not None for f in vars(state)}
    assert fields <= set(wire.private) | SHARED.get(name, {}).keys(), "a field is neither private nor shared"


@pytest.mark.parametrize("disguise", ["whole", "part"])
def test_a_method_that_sends_a_private_field_is_found(
    tmp_path: Path, data: Path, base: RunConfig, monkeypatch: pytest.MonkeyPatch, disguise: str
) -> None:
    """The head over the first weights of the body: its shape is the body's, so no check of shapes objects."""
    client = METHODS["pflego"].client_class()
    answer = client.answer

    def talkative(self: Any, order: Any, state: Any, data: Any, rng: Any) -> Any:
        reply, new = answer(self, order, state, data, rng)
        name, body = next(iter(reply.theta.items()))
        head = torch.cat([x.reshape(-1) for x in new.head.values()])
        told = head[: body.numel()] if disguise == "whole" else head[1:4]
        flat = torch.cat([told, body.reshape(-1)[len(told) :]])
        return type(reply)(**{**vars(reply), "theta": reply.theta | {name: flat.reshape(body.shape)}}), new

    monkeypatch.setattr(client, "answer", talkative)
    assert play(tmp_path, "pflego", data, base).leaked() == {"head"}


def test_needles_find_what_is_transposed_or_converted() -> None:
    secret = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    needles = set(_needles(secret))
    for form in (secret, secret.T.copy(), secret[1:, 2:].copy(), secret.astype(np.float64)):
        assert any(n in form.tobytes() for n in needles)
    assert not any(n in (secret + 1).tobytes() for n in needles)
    assert not set(itertools.chain(_needles(np.zeros((2, 2))), _needles(np.ones(3))))
