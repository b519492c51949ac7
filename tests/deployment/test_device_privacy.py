"""Noise on a device: from a key that stays there; one answer to an exchange."""

import csv
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from fedpers.app import deployed
from fedpers.core.errors import FedpersError
from fedpers.core.privacy import norm
from fedpers.core.serialization import unpack
from fedpers.deploy import device_grid
from fedpers.deploy.secret_noise import KEY, RELEASED, SecretNoise
from fedpers.flower.accounting import epsilon
from fedpers.flower.messages import Header, Request
from tests.deployment.fake_link import Link, configs, unbundled, with_nan

DP = ("privacy=dp", "privacy.clip=0.1", "privacy.noise_multiplier=5")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_grid, "LOOK_S", 0.01)


def asked(t: int = 1) -> Request:
    return Request(0, None, Header("train", t, 0))


def test_noise_is_the_same_for_the_same_change_and_from_the_devices_own_key(tmp_path: Path) -> None:
    change = {"w": torch.ones(8)}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    draws = [SecretNoise(tmp_path / name)(asked(), change).normal(8) for name in ("a", "a", "b")]
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])
    assert not torch.equal(draws[0], SecretNoise(tmp_path / "a")(asked(2), change).normal(8))
    assert (tmp_path / "a" / KEY).stat().st_mode & 0o777 == 0o600
    assert len((tmp_path / "a" / KEY).read_bytes()) == 32


def test_a_second_answer_to_one_exchange_is_refused(tmp_path: Path) -> None:
    noise = SecretNoise(tmp_path)
    noise(asked(), {"w": torch.ones(2)})
    with pytest.raises(FedpersError, match=r"exchange 1-0 .* was answered before, with another change"):
        SecretNoise(tmp_path)(asked(), {"w": torch.zeros(2)})
    assert len((tmp_path / RELEASED).read_text().splitlines()) == 1


def test_a_run_on_devices_sends_noised_gradients_and_tells_what_it_spent(tmp_path: Path) -> None:
    """σ = z C = 0.5 a number. A reply that got lost is sent again with the same noise."""
    _, cfg = configs("pflego", 2, *DP)
    seen: list[Any] = []

    def spoil_once(who: str, header: dict[str, Any], reply: Any) -> Any:
        if (who, header["t"], header["kind"]) == ("site-1", 1, "train"):
            seen.append(open_reply_body(reply))
            return with_nan(reply) if len(seen) == 1 else reply
        return reply

    link = Link(tmp_path, cfg, spoil_once)
    out = tmp_path / "out"
    out.mkdir()
    deployed.run(cfg, out, link)  # type: ignore[arg-type]
    first, second = seen
    assert all(torch.equal(first[k], second[k]) for k in first)
    count = sum(v.numel() for v in first.values())
    assert norm(first) == pytest.approx(0.5 * count**0.5, rel=0.1)
    with (out / "metrics.csv").open(newline="") as file:
        column = [float(r["epsilon"]) for r in csv.DictReader(file) if r["split"] == "train"]
    assert column == [epsilon(cfg.privacy, n) for n in (1, 2)]
    keys = [p.read_bytes() for p in tmp_path.glob(f"site-*/**/{KEY}")]
    assert len(set(keys)) == 3 and not [k for k in keys if k in b"".join(link.wire)]


def open_reply_body(reply: Any) -> Any:
    return unpack(str(reply.content["config"]["skeleton"]), unbundled(reply.content)).theta


def test_a_device_refuses_a_method_that_cannot_have_it(tmp_path: Path) -> None:
    """Also when the server has not asked first."""
    _, cfg = configs("fedsoft", 1)
    link = Link(tmp_path, dataclasses.replace(cfg, privacy=configs("pflego", 1, *DP)[1].privacy))
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(FedpersError, match="privacy=dp: u_k is sent beside the model"):
        deployed.run(cfg, out, link)  # type: ignore[arg-type]
