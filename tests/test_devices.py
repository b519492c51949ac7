"""Several GPUs in one run: which are taken, what is refused, and that processes give the numbers of one."""

import numpy as np
import pandas as pd
import pytest
import torch

import fedpers
from fedpers.app import backends
from fedpers.app.cli import main
from fedpers.app.devices import devices_of
from fedpers.config import compose
from fedpers.core import machine
from fedpers.core.errors import ConfigError
from tests.test_gpu import DEVICE

SMALL = ["data.num_clients=5", "data.limit=200", "rounds=3", "checkpoint_every=2", "model.hidden=[8]"]


@pytest.fixture
def four(monkeypatch):
    monkeypatch.setattr(machine, "gpus", lambda: [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("words", "devices"),
    [
        ([], ("cuda",)),
        (["device=cpu"], ("cpu",)),
        (["device=cuda"], ("cuda", "cuda:1", "cuda:2", "cuda:3")),
        (["device=cuda:1"], ("cuda:1",)),
        (["devices=[0,2]"], ("cuda", "cuda:2")),
        (["device=cuda", "devices=[3]"], ("cuda:3",)),
    ],
)
def test_which_devices_a_run_takes(four, words, devices):
    assert devices_of(compose.load(words)) == devices


def test_without_a_gpu_auto_is_the_cpu(monkeypatch):
    monkeypatch.setattr(machine, "gpus", list)
    assert devices_of(compose.load([])) == ("cpu",)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["device=cuda:4"], r"device=cuda:4: there is no GPU 4 for this process; it has 0, 1, 2, 3"),
        (["devices=[1,5,7]"], r"devices=\[1,5,7\]: there is no GPU 5, 7"),
        (["devices=[1,1]"], r"devices=\[1,1\]: expected different"),
        (["devices=[-1]"], r"devices=\[-1\]: expected different"),
        (["device=cpu", "devices=[0]"], r"devices=\[0\] device=cpu: name the devices once"),
        (["device=gpu"], "device=gpu: expected one of auto, cpu, cuda, cuda:N"),
        (["device=cuda:x"], "device=cuda:x: expected"),
        (["device=cuda:1", "engine=ray"], "device=cuda:1: Ray gives each actor its GPU"),
        (["devices=[0]", "engine=deployment"], r"devices=\[0\]: each device has its own"),
    ],
)
def test_devices_that_are_not_there_are_refused_by_name(four, words, said):
    with pytest.raises(ConfigError, match=said):
        devices_of(compose.load(words))


@pytest.mark.parametrize("word", ["device=cuda", "device=cuda:1", "devices=[0,2]"])
def test_on_a_machine_without_gpus_the_key_is_named(monkeypatch, word):
    monkeypatch.setattr(machine, "gpus", list)
    with pytest.raises(ConfigError, match="torch finds no CUDA device") as caught:
        devices_of(compose.load([word]))
    assert str(caught.value).startswith(word)


def made(out, *words):
    assert main(["run", *SMALL, *words, f"out={out}"]) == 0
    table = pd.read_csv(out / "metrics.csv").drop(columns=["seconds", "between_seconds"])
    return table, pd.read_csv(out / "clients.csv"), dict(np.load(out / "arrays.npz"))


def same(one, other, rtol=0.0):
    for a, b in zip(one[:2], other[:2], strict=True):
        pd.testing.assert_frame_equal(a, b, check_exact=not rtol, rtol=rtol or 1e-5)
    assert one[2].keys() == other[2].keys()
    for name, array in one[2].items():
        np.testing.assert_allclose(array, other[2][name], rtol=rtol, atol=rtol)


def spread(monkeypatch, *devices):
    """Have `devices=` stand for these; returns the devices on which workers were started."""
    started = []

    def starter(*args):
        start = backends_starter(*args)

        def noted(i, mine):
            started.append(args[1][i % len(args[1])])
            return start(i, mine)

        return noted

    backends_starter = backends.starter
    monkeypatch.setattr(backends, "devices_of", lambda cfg: devices)
    monkeypatch.setattr(backends, "starter", starter)
    return started


@pytest.mark.skipif(not hasattr(__import__("os"), "memfd_create"), reason="shared memory as on Linux")
@pytest.mark.parametrize("method", ["ditto", "ppfl"])
def test_processes_on_several_devices_give_the_numbers_of_one(tmp_path, monkeypatch, method):
    """CPUs stand for the GPUs: the processes, their own data and models, what travels, are as there.

    With models that clients keep, and with a server that sends each client what is its own; FedAvg and
    PFLEGO, whose messages are parts of these, are run where there are cards.
    """
    alone = made(tmp_path / "one", f"method={method}", "device=cpu")
    started = spread(monkeypatch, "cpu", "cpu")
    same(alone, made(tmp_path / "two", f"method={method}", "device=cpu"))
    assert started == ["cpu"]


def test_workers_are_dealt_over_the_devices(tmp_path, monkeypatch):
    alone = made(tmp_path / "one", "method=fedper", "device=cpu")
    started = spread(monkeypatch, "cpu", "cpu")
    same(alone, made(tmp_path / "two", "method=fedper", "device=cpu", "engine.workers=3"))
    assert len(started) == 2


def test_a_federation_of_the_callers_stays_on_one_device(tmp_path, monkeypatch, caplog):
    x, y = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    data = fedpers.Federation.from_arrays([(x, y), (x + 1, y)])
    started = spread(monkeypatch, "cpu", "cpu")
    fedpers.run("fedavg", data=data, rounds=1, out=tmp_path / "a", device="cpu")
    assert not started and "one of 2 GPUs is used" in caplog.text
    with pytest.raises(ConfigError, match=r"engine.workers=2: other processes cannot reach"):
        fedpers.run("fedavg", "engine.workers=2", data=data, rounds=1, out=tmp_path / "b", device="cpu")


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="torch finds no CUDA device")
@pytest.mark.parametrize("method", ["fedavg", "ditto", "pflego"])
def test_processes_on_one_card_give_the_numbers_of_one_process(tmp_path, monkeypatch, method):
    """To the order of sums in stacks of another size."""
    alone = made(tmp_path / "one", f"method={method}", f"device={DEVICE}", "engine.workers=1")
    started = spread(monkeypatch, DEVICE, DEVICE)
    same(alone, made(tmp_path / "two", f"method={method}", f"device={DEVICE}"), rtol=1e-3)
    assert started == [DEVICE]


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="torch finds fewer than two CUDA devices")
@pytest.mark.parametrize("words", [["device=cuda"], ["device=cuda:1"], ["devices=[1,0]"]])
def test_several_cards_give_the_numbers_of_one(tmp_path, words):
    alone = made(tmp_path / "one", "method=ditto", "devices=[0]")
    same(alone, made(tmp_path / "more", "method=ditto", *words), rtol=1e-3)
