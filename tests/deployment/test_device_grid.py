"""Runs on devices without a network: equal to runs in process, through faults, crashes and resumption."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Error, Message

from fedpers.app import deployed
from fedpers.app.export import export
from fedpers.app.run import execute as run_inside
from fedpers.core.errors import FedpersError, ReplyError
from fedpers.deploy import device_grid
from tests.deployment import fake_link
from tests.deployment.fake_link import (
    Link,
    assert_equal_states,
    clients_of,
    column,
    configs,
    looped,
    with_nan,
)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_grid, "LOOK_S", 0.01)


def on_devices(tmp_path: Path, cfg: Any, fault: Any = None, out: str = "devices") -> tuple[Path, Link]:
    link = Link(tmp_path, cfg, fault)
    return fake_link.on_devices(link, cfg, tmp_path / out), link


@pytest.mark.parametrize("method", ["pflego", "fedsoft", "ppfl", "fedavg", "ditto", "scd"])
def test_devices_give_the_bits_of_a_run_in_process(tmp_path: Path, method: str) -> None:
    """A device runs alone, as engine.runner=loop does; stacks of clients may round otherwise."""
    inside, outside = configs(method, 3)
    run_inside(looped(inside), tmp_path / "loop")
    out, _ = on_devices(tmp_path, outside)
    assert_equal_states(tmp_path / "loop", out)
    assert clients_of(tmp_path / "loop") == clients_of(out)
    assert json.loads((out / "summary.json").read_text())["engine"] == "deployment"


def test_a_fault_that_stays_costs_the_round_one_client(tmp_path: Path) -> None:
    _, outside = configs("pflego", 3, "failures=skip", "engine.min_replies=2")
    out, _ = on_devices(
        tmp_path,
        outside,
        lambda who, h, r: with_nan(r) if (who, h["t"], h["kind"]) == ("site-1", 2, "train") else r,
    )
    assert column(out, "failures") == ["0", "1", "0"] and column(out, "answered") == ["3", "5", "6"]


def test_too_few_replies_end_the_run_with_every_reason(tmp_path: Path) -> None:
    _, outside = configs("pflego", 2, "failures=skip", "engine.min_replies=3")
    with pytest.raises(ReplyError, match=r"round 1: 2 of 3 clients answered, 3 are needed \(site-1: .*NaN"):
        on_devices(tmp_path, outside, lambda who, h, r: with_nan(r) if who == "site-1" and h["t"] else r)


def test_a_client_that_was_away_is_asked_when_it_returns(tmp_path: Path) -> None:
    """It leaves before round 2 and comes back as another node; its state is where it was."""
    _, outside = configs("pflego", 4, "failures=skip", "engine.min_replies=2")
    link = Link(tmp_path, outside)

    def leave_and_return(who: str, header: dict[str, Any], reply: Any) -> Any:
        if (header["t"], header["kind"]) == (1, "evaluate"):
            link.offline.add(101)
        if (header["t"], header["kind"]) == (2, "evaluate"):
            link.nodes[201] = "site-1"
        return reply

    link.fault = leave_and_return
    (tmp_path / "out").mkdir()
    deployed.run(outside, tmp_path / "out", link)  # type: ignore[arg-type]
    asked = [(h["t"], tuple(h["since"])) for who, h in link.sent if who == "site-1" and h["kind"] == "train"]
    assert asked == [(1, (-1, -1)), (3, (1, 0)), (4, (3, 0))]


def test_a_crashed_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    inside, outside = configs("scd", 6, "checkpoint_every=2")
    run_inside(looped(inside), tmp_path / "inside")

    def crash(who: str, header: dict[str, Any], reply: Any) -> Any:
        if header["t"] == 4 and header["kind"] == "evaluate":
            raise KeyboardInterrupt
        return reply

    with pytest.raises(KeyboardInterrupt):
        on_devices(tmp_path, outside, crash)
    out = tmp_path / "devices"
    deployed.run(dataclasses.replace(outside, resume=str(out)), out, Link(tmp_path, outside))  # type: ignore[arg-type]
    assert_equal_states(tmp_path / "inside", out)
    assert clients_of(tmp_path / "inside") == clients_of(out)


def test_a_second_run_of_the_same_configuration_starts_anew(tmp_path: Path) -> None:
    inside, outside = configs("pflego", 2)
    run_inside(looped(inside), tmp_path / "inside")
    on_devices(tmp_path, outside, out="first")
    out, _ = on_devices(tmp_path, outside, out="second")
    assert clients_of(tmp_path / "inside") == clients_of(out)


def test_a_node_that_went_away_in_the_roll_call_is_asked_again(tmp_path: Path) -> None:
    """Flower says so in its stead; a node that comes back has the same number."""
    _, outside = configs("fedavg", 1)
    first = iter([True])

    def gone(who: str, header: dict[str, Any], reply: Any) -> Any:
        if who == "site-1" and header["kind"] == "query" and next(first, False):
            lost = Message(Error(5, "Node Unavailable"), reply_to=reply)
            lost.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
            return lost
        return reply

    _, link = on_devices(tmp_path, outside, gone)
    assert sorted(who for who, h in link.sent if h["kind"] == "train") == ["site-0", "site-1", "site-2"]


def test_too_few_clients_at_the_start_say_who_came(tmp_path: Path) -> None:
    _, outside = configs("fedavg", 1, "engine.min_clients=3")
    link = Link(tmp_path, outside)
    link.offline.add(102)
    engine = dataclasses.replace(outside.engine, deadline_s=3.0)
    with pytest.raises(FedpersError, match=r"only 2 of at least 3 clients came .*\(site-0, site-1\)"):
        deployed.run(dataclasses.replace(outside, engine=engine), tmp_path / "out", link)  # type: ignore[arg-type]


def test_a_whole_model_is_exported_from_a_run_on_devices(tmp_path: Path) -> None:
    from fedpers.app.run_folder import store_config

    _, outside = configs("fedavg", 1)
    out, _ = on_devices(tmp_path, outside)
    store_config(outside, out)
    (path,) = export(out)
    assert path.is_file()
