"""What devices say outside training is checked too; one whose first answer was bad is asked again."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from fedpers.core.errors import FedpersError, ReplyError
from fedpers.core.serialization import pack, unpack
from fedpers.deploy import device_grid, roll_call
from fedpers.flower.messages import error_reply
from tests.deployment.fake_link import Link, column, configs, on_devices

Change = Callable[[dict[str, Any]], None]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_grid, "LOOK_S", 0.01)
    monkeypatch.setattr(roll_call, "LOOK_S", 0.01)


def told(kind: str, change: Change) -> Any:
    """site-1 changes its answers of a kind: the columns of an evaluation, or the plain values."""

    def fault(who: str, header: dict[str, Any], reply: Message) -> Message:
        if (who, header["kind"]) == ("site-1", kind):
            config: Any = reply.content["config"]
            if kind == "evaluate":
                columns = unpack(config["skeleton"], [])
                change(columns)
                config["skeleton"] = pack(columns)[0]
            else:
                change(config)
        return reply

    return fault


EVALUATIONS = {
    "test_accuracy is 99.0": lambda c: c.update(test_accuracy=99.0),
    "test_accuracy is nan": lambda c: c.update(test_accuracy=float("nan")),
    "test_loss is nan": lambda c: c.update(test_loss=float("nan")),
    "test_loss is inf": lambda c: c.update(test_loss=float("inf")),
    "test_loss is -1.0": lambda c: c.update(test_loss=-1.0),
    "test_num is 1e+18": lambda c: c.update(test_num=1e18),
    "valid_num is 0.5": lambda c: c.update(valid_num=0.5),
    "valid_num is missing": lambda c: c.clear(),
    "test_accuracy is True": lambda c: c.update(test_accuracy=True),
    "'own_gain' is no field": lambda c: c.update(own_gain=1.0),
}


@pytest.mark.parametrize("why", EVALUATIONS)
def test_an_evaluation_that_cannot_be_is_refused_by_client_and_column(tmp_path: Path, why: str) -> None:
    _, cfg = configs("fedavg", 1, "engine.retries=0")
    fault = told("evaluate", EVALUATIONS[why])
    with pytest.raises(ReplyError, match=f"site-1: {re.escape(why)}"):
        on_devices(Link(tmp_path, cfg, fault), cfg, tmp_path / "out")


FACTS = {
    "label_counts is": lambda c: c.update(label_counts=c["label_counts"][:-1]),
    "label_counts sums to": lambda c: c.update(label_counts=[1] * 10),
    "num_test is 1000000000000000000": lambda c: c.update(num_test=10**18),
    "num_train is 0": lambda c: c.update(num_train=0),
    "num_train is '9'": lambda c: c.update(num_train="9"),
    "num_train is missing": lambda c: c.pop("num_train"),
    "fedpers: the device does not tell i": lambda c: c.clear(),  # without a version nothing else is read
}


@pytest.mark.parametrize("why", FACTS)
def test_facts_that_cannot_be_are_named_and_the_others_go_on(tmp_path: Path, why: str, caplog: Any) -> None:
    words = ["engine.deadline_s=2.0", "engine.min_clients=2", "failures=skip"]
    _, cfg = configs("fedavg", 1, *[w for w in words if "deadline" not in w])
    link = Link(tmp_path, cfg, told("query", FACTS[why]))
    out = on_devices(link, _patient(cfg, 2.0), tmp_path / "out")
    assert json.loads((out / "summary.json").read_text())["status"] == "finished"
    assert column(out, "asked") == ["2"]
    assert f"site-1): its answer to the roll call: {why}" in caplog.text
    assert [who for who, h in link.sent if h["kind"] == "query"].count("site-1") == 2


def _patient(cfg: Any, seconds: float) -> Any:
    import dataclasses

    return dataclasses.replace(cfg, engine=dataclasses.replace(cfg.engine, deadline_s=seconds))


@pytest.mark.parametrize("how", ["lost", "failed", "damaged"])
def test_a_device_whose_first_answer_was_bad_is_asked_again(tmp_path: Path, how: str) -> None:
    _, cfg = configs("fedavg", 1)
    first = iter([True])

    def fault(who: str, header: dict[str, Any], reply: Message) -> Message | None:
        if who != "site-1" or header["kind"] != "query" or not next(first, False):
            return reply
        if how == "lost":
            return None
        if how == "damaged":
            reply.content["config"]["num_train"] = -1  # type: ignore[index,call-overload]
            return reply
        failed = error_reply(reply, "its process ended while it worked")
        failed.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
        return failed

    link = Link(tmp_path, cfg, fault)
    on_devices(link, cfg, tmp_path / "out")
    assert sorted(who for who, h in link.sent if h["kind"] == "train") == ["site-0", "site-1", "site-2"]


def test_too_few_clients_are_told_with_the_reason_of_each(tmp_path: Path) -> None:
    _, cfg = configs("fedavg", 1, "engine.min_clients=3")
    link = Link(tmp_path, cfg, told("query", lambda c: c.update(num_train=0)))
    with pytest.raises(FedpersError, match=r"only 2 of at least 3.*site-1: .*num_train is 0"):
        on_devices(link, _patient(cfg, 1.0), tmp_path / "out")


OPTIONS = {
    "metrics": ["fedavg", "metrics=[auc,ece,brier,macro_f1,variance]", "eval_train=true"],
    "participants": ["ditto", "eval_protocol=participants_local"],
    "double": ["fedsoft", "dtype=float64", "method.K=3"],
    "private": ["fedavg", "privacy=dp"],
    "new": ["fedem", "new_clients=1", "new_epochs=1"],
    "peers": ["federico", "method.num_neighbours=1"],
    "weights": ["fedem", "method.tell_weights=true"],
}


@pytest.mark.parametrize("name", OPTIONS)
def test_honest_answers_are_taken_whatever_the_settings(tmp_path: Path, name: str) -> None:
    method, *words = OPTIONS[name]
    _, cfg = configs(method, 3, *words)
    out = on_devices(Link(tmp_path, cfg), cfg, tmp_path / "out")
    assert set(column(out, "refused")) == {"0"}
