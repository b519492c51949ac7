"""A run on devices says who took part, who was missing, on what terms; versions that do not fit are told."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedpers import __version__
from fedpers.deploy import device_grid, diary, roll_call, submit
from fedpers.deploy.diary import card_of, spans
from fedpers.deploy.policy import Policy
from fedpers.deploy.versions import mismatch
from tests.deployment.fake_link import Link, configs, on_devices, with_nan


def test_the_card_says_who_trained_when_and_why_others_did_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(device_grid, "LOOK_S", 0.01)
    monkeypatch.setattr(roll_call, "LOOK_S", 0.01)
    (tmp_path / "policy.toml").write_text("most_rounds = 3")
    _, cfg = configs("fedavg", 3, "failures=skip", "engine.retries=0")

    def spoil(who: str, header: dict[str, Any], reply: Any) -> Any:
        return with_nan(reply) if (who, header["t"], header["kind"]) == ("site-1", 2, "train") else reply

    link = Link(tmp_path, cfg, spoil)
    link.options["policy"] = str(tmp_path / "policy.toml")
    out = on_devices(link, cfg, tmp_path / "out")
    card = json.loads((out / "card.json").read_text())
    assert card["status"] == "finished" and card["server"] == [__version__]
    assert [card["clients"][f"site-{k}"]["trained"] for k in range(3)] == [[1, 2, 3], [1, 3], [1, 2, 3]]
    assert "NaN" in card["clients"]["site-1"]["missing"]["2"]
    assert card["clients"]["site-0"]["policies"] == [Policy.of({"most_rounds": 3}).digest]
    assert "site-1" in (out / "card.html").read_text()
    with caplog.at_level("INFO", "fedpers"):
        submit._tell_rounds(out, 0, 3)
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("round ")]
    assert "missing: site-1 (" in lines[-2] and "missing" not in lines[-1] + lines[-3]


def test_what_a_device_says_is_shown_as_text(tmp_path: Path) -> None:
    line = {"at": "now", "round": 1, "kind": "train", "answered": [], "missing": {"<b>": "<i>&"}}
    (tmp_path / diary.FILE).write_text(json.dumps(line))
    diary.write_card(tmp_path, {"status": "failed"})
    page = (tmp_path / diary.PAGE).read_text()
    assert "&lt;b&gt;" in page and "1: &lt;i&gt;&amp;" in page and "<b>" not in page
    assert card_of([line], {})["clients"]["<b>"]["missing"] == {"1": "<i>&"}


def test_rounds_are_written_as_spans() -> None:
    assert spans([1, 2, 3, 7, 9, 10]) == "1-3, 7, 9-10" and spans([]) == ""


def test_versions_with_the_same_first_two_numbers_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpers.deploy.versions.__version__", "1.4.2")
    assert mismatch("1.4.0", "the server") is None and mismatch("1.4.2rc1", "the server") is None
    assert "the server has fedpers 1.5.0, here is 1.4.2" in str(mismatch("1.5.0", "the server"))
    assert "2.4.2" in str(mismatch("2.4.2", "the server"))
    for other in (None, 1, "", "one"):
        assert "does not tell its version" in str(mismatch(other, "the device"))


@pytest.mark.parametrize("where", ["server", "device"])
def test_another_version_is_named_when_a_device_connects(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedpers.core.errors import FedpersError

    monkeypatch.setattr(device_grid, "LOOK_S", 0.01)
    monkeypatch.setattr(roll_call, "LOOK_S", 0.01)
    name = "orders" if where == "server" else "resident"
    monkeypatch.setattr(f"fedpers.deploy.{name}.__version__", "0.0.1")
    import dataclasses

    _, cfg = configs("fedavg", 1)
    cfg = dataclasses.replace(cfg, engine=dataclasses.replace(cfg.engine, deadline_s=0.6))
    with pytest.raises(FedpersError, match=r"site-0: .*has fedpers 0\.0\.1, here is"):
        on_devices(Link(tmp_path, cfg), cfg, tmp_path / "out")
