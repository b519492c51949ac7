"""A large model is in memory as few times as can be: on the server, on a device, between its processes."""

import gc
import io
import json
import re
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedpers.clients.fedavg import Weights
from fedpers.config.run_config import to_mapping
from fedpers.core.plan import Plan
from fedpers.core.serialization import pack, unpack
from fedpers.deploy import device_grid, frames, roll_call, spilled
from fedpers.deploy.rehearsal import made_up
from fedpers.deploy.resident import model_of, one_device
from fedpers.engines.memory.client_store import RamStore
from fedpers.engines.population import Population
from fedpers.flower.messages import Header, Request
from fedpers.learning.model import initial_params
from fedpers.registry import method
from tests.deployment.fake_link import Link, assert_equal_states, configs, on_devices


@pytest.fixture
def no_garbage() -> Iterator[None]:
    """Python does not look for cycles meanwhile, as it hardly does while a run is made."""
    gc.disable()
    yield
    gc.enable()


# ---- between a device's processes ---------------------------------------------------------------

ARRAYS = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.float64(3.5).reshape(()),
    np.zeros((0, 4), np.int64),
    np.array([True, False]),
    np.arange(2**18, dtype=np.float64),  # more than a socket holds
]


def through_a_socket(arrays: list[Any], read: Any) -> tuple[dict[str, Any], list[Any]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender = threading.Thread(target=frames.send, args=(ours, {"kind": "train"}, arrays))
        sender.start()
        found = frames.receive(theirs, read)
        sender.join()
    return found


def test_arrays_come_out_of_the_socket_as_they_went_in() -> None:
    arrays = list(ARRAYS)
    header, found = through_a_socket(arrays, frames.read_array)
    assert header == {"kind": "train"} and arrays == []  # what was sent may be freed
    for a, b in zip(ARRAYS, found, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype) and np.array_equal(a, b) and b.flags.writeable


def test_an_array_that_numpy_stored_is_sent_as_it_is_and_read_by_columns() -> None:
    file, columns = io.BytesIO(), np.asfortranarray(ARRAYS[0])
    np.save(file, columns)
    _, (found,) = through_a_socket([file.getvalue()], frames.read_array)
    assert np.array_equal(found, columns)
    _, (stored,) = through_a_socket([ARRAYS[0]], frames.read_bytes)
    assert np.array_equal(np.load(io.BytesIO(stored), allow_pickle=False), ARRAYS[0])


def test_bytes_that_are_no_array_of_numbers_are_refused() -> None:
    file = io.BytesIO()
    np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    for stored in (b"no array at all", file.getvalue()):
        with pytest.raises(ValueError):
            through_a_socket([stored], frames.read_array)


def test_a_sender_that_goes_away_half_way_is_noticed() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.sendall(frames.SIZE.pack(100) + b"{")
        with pytest.raises(EOFError):
            frames.receive(theirs, frames.read_array)


# ---- nothing stays ------------------------------------------------------------------------------


def test_what_was_packed_and_unpacked_goes_with_its_last_user(no_garbage: None) -> None:
    body = {"w": torch.zeros(4)}
    skeleton, arrays = pack(body)
    packed, made = weakref.ref(arrays[0]), unpack(skeleton, arrays)
    tensor, source = weakref.ref(made["w"]), weakref.ref(arrays[0])
    del arrays, made
    assert packed() is None and tensor() is None and source() is None


@pytest.mark.parametrize("more", [(), ("privacy=dp",)])
def test_a_population_goes_with_its_last_user_and_so_does_its_last_order(
    no_garbage: None, more: tuple[str, ...]
) -> None:
    _, cfg = configs("fedavg", 1, *more)
    client = method("fedavg").client_class()(cfg.method, model_of(cfg))
    plan = Plan(seed=3, device="cpu", dtype="float32", privacy=cfg.privacy)
    for _ in range(2):  # at the first step torch loads what it needs
        population = Population(client, one_device(made_up(cfg), cfg), RamStore(), plan)
        order = Weights(initial_params(client.model, plan))
        assert not isinstance(population.one(Request(0, order, Header("train", 1))), Exception)
        gone = weakref.ref(population)
        del population
    assert gone() is None


# ---- the server ---------------------------------------------------------------------------------


def test_an_order_to_all_is_packed_once_and_replies_are_kept_in_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (device_grid, roll_call):
        monkeypatch.setattr(module, "LOOK_S", 0.01)
    _, cfg = configs("fedavg", 2)
    plain = on_devices(Link(tmp_path / "a", cfg), cfg, tmp_path / "a" / "out")
    packed: list[str] = []
    seal = device_grid.seal
    monkeypatch.setattr(device_grid, "seal", lambda h, b: packed.append(h["kind"]) or seal(h, b))
    for name in ("LARGE", "SMALL"):
        monkeypatch.setattr(spilled, name, 1)
    kept: list[Path] = []
    in_file = spilled._in_file
    monkeypatch.setattr(spilled, "_in_file", lambda f, x: kept.append(f) or in_file(f, x))
    out = tmp_path / "b" / "out"
    out.mkdir(parents=True)
    _, cfg = configs("fedavg", 2, f"out={out}")
    on_devices(Link(tmp_path / "b", cfg), cfg, out)
    assert packed == ["train", "evaluate"] * 2 and set(kept) == {out}
    assert_equal_states(plain, out)
    assert not list(out.glob(".reply-*"))


def test_a_large_reply_lies_in_a_file_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spilled, "LARGE", 100)
    monkeypatch.setattr(spilled, "SMALL", 64)
    body = {"w": torch.arange(24.0).view(2, 12), "b": torch.ones(3), "n": 7}
    found = spilled.spilled(body, tmp_path)
    assert torch.equal(found["w"], body["w"]) and found["w"].data_ptr() != body["w"].data_ptr()
    assert found["b"] is body["b"] and found["n"] == 7 and not list(tmp_path.iterdir())
    maps = Path("/proc/self/maps").read_text()
    assert re.search(rf"{re.escape(str(tmp_path))}/\.reply-\S+ \(deleted\)", maps)
    found["w"].add_(1)  # a page of its own
    assert torch.equal(found["w"], body["w"] + 1)


def test_a_small_reply_and_one_without_room_on_the_disk_stay_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    body = {"w": torch.arange(24.0)}
    assert spilled.spilled(body, tmp_path) is body and spilled.spilled(body, None) is body
    monkeypatch.setattr(spilled, "LARGE", 1)
    monkeypatch.setattr(spilled, "SMALL", 1)
    assert spilled.spilled(body, tmp_path / "absent") is body
    assert "a large reply stays in memory" in caplog.text


# ---- a device -----------------------------------------------------------------------------------

DEVICE = """
import json, sys
from pathlib import Path
import numpy as np
from fedpers.core.host import owned
from fedpers.core.memory import give_back
from fedpers.core.serialization import pack
from fedpers.deploy import resident
from fedpers.deploy.orders import Order
from fedpers.deploy.private_state import Recall
from fedpers.flower.messages import Header

def now(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

owned()
config, data, state = sys.argv[1:]
order = Order("0" * 32, 0, Recall(None, None), 600.0)
node = {"client": "a", "data": data, "state": state}
def asked(kind, skeleton):
    header = {**Header(kind, 1)._asdict(), **order.header(), "skeleton": skeleton}
    return {"header": header, "node": node, "config": config}
resident.answer(asked("query", "null"), [])
from fedpers.clients.fedavg import Weights
from fedpers.learning.model import initial_params
seat = resident._seat.__wrapped__ and resident.model_of(resident.from_mapping(json.loads(config)))
from fedpers.core.plan import Plan
skeleton, arrays = pack(Weights(initial_params(seat, Plan(seed=3, device="cpu", dtype="float32"))))
del seat
size = sum(a.nbytes for a in arrays)
give_back()
before = now("VmRSS") - size
Path("/proc/self/clear_refs").write_text("5")
header, reply = resident.answer(asked("train", skeleton), arrays)
assert "error" not in header and sum(a.nbytes for a in reply) == size
print((now("VmHWM") - before) / size)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_device_holds_at_most_three_models(tmp_path: Path) -> None:
    """The order, the model that is trained, its gradient; the reply is sent from where it lies."""
    _, cfg = configs("fedavg", 1, "model.hidden=[1500,1500,1500]", "method.local.batch_size=64")
    link = Link(tmp_path, cfg)
    words = [json.dumps(to_mapping(cfg)), str(link.data / "site-0.npz"), str(tmp_path / "state")]
    done = subprocess.run([sys.executable, "-c", DEVICE, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 1 < float(done.stdout) < 3.3  # 0.3 for what is no model: 18 MB of data and activations
