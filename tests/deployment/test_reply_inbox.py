"""Replies that stop half-way hold up no others; many clients cost few requests."""

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedpers.deploy import reply_inbox
from fedpers.deploy.reply_inbox import CALLS, LARGE, ReplyInbox
from tests.deployment.fake_link import Link, column, configs, on_devices

PATIENCE_S = 30.0  # far more than a call here takes


def reply_to(number: str) -> Any:
    return SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=number))


class Grid:
    """Replies to all but the messages `half`, whose call does not return before `release`."""

    def __init__(self, *half: str) -> None:
        self.half, self.calls = set(half), []
        self.release = threading.Event()

    def pull_messages(self, numbers: Iterable[str]) -> list[Any]:
        asked = list(numbers)
        self.calls.append(asked)
        if self.half & set(asked):
            self.release.wait(PATIENCE_S)
        return [reply_to(n) for n in asked]


@pytest.fixture
def stuck() -> Iterator[Grid]:
    grid = Grid("1")
    yield grid
    grid.release.set()


def names(messages: list[Any]) -> set[str]:
    return {m.metadata.reply_to_message_id for m in messages}


def test_a_reply_that_stops_half_way_holds_up_no_other(stuck: Grid) -> None:
    box = ReplyInbox(stuck)  # type: ignore[arg-type]
    assert names(box.look(["0", "1", "2"], 0.5)) == {"0", "2"}
    assert box.look(["1"], 0.01) == [] and sum("1" in call for call in stuck.calls) == 1
    stuck.release.set()
    assert names(box.look(["1"], PATIENCE_S)) == {"1"}


def test_what_nobody_asks_for_any_more_is_dropped(stuck: Grid) -> None:
    box = ReplyInbox(stuck)  # type: ignore[arg-type]
    assert box.look(["1"], 0.01) == []
    stuck.release.set()
    assert names(box.look(["2"], PATIENCE_S)) == {"2"}


def test_many_clients_cost_few_requests() -> None:
    grid, wanted = Grid(), [str(i) for i in range(10 * CALLS + 3)]
    assert names(ReplyInbox(grid).look(wanted, PATIENCE_S)) == set(wanted)  # type: ignore[arg-type]
    assert len(grid.calls) <= CALLS


def test_what_the_grid_raises_is_raised_where_somebody_looks() -> None:
    class Broken:
        def pull_messages(self, numbers: Iterable[str]) -> list[Any]:
            raise ConnectionError("the SuperLink is gone")

    with pytest.raises(ConnectionError, match="the SuperLink is gone"):
        ReplyInbox(Broken()).look(["0"], PATIENCE_S)  # type: ignore[arg-type]


def test_a_round_goes_on_without_the_half_of_a_reply(tmp_path: Path) -> None:
    """A device dies while it uploads in round 2: that reply is late, the other two count."""
    _, outside = configs("fedavg", 3, "failures=skip", "engine.min_replies=2", "engine.retries=0")
    link, release = Link(tmp_path, outside), threading.Event()
    pull, half = link.pull_messages, set[str]()

    def remember(who: str, header: dict[str, Any], reply: Any) -> Any:
        if (who, header["t"], header["kind"]) == ("site-1", 2, "train"):
            half.add(str(link._count))
        return reply

    def stop_half_way(ids: Iterable[str]) -> list[Any]:
        wanted = list(ids)
        if half & set(wanted):
            release.wait(PATIENCE_S)
        return pull(wanted)

    link.fault, link.pull_messages = remember, stop_half_way  # type: ignore[method-assign]
    out = on_devices(link, outside, tmp_path / "out")
    release.set()
    assert len(half) == 1
    assert column(out, "failures") == ["0", "1", "0"] and column(out, "late") == ["0", "1", "0"]


def test_large_replies_are_fetched_one_after_the_other_in_turns(
    stuck: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the first ones have not come; one that takes too long holds up no other."""
    box = ReplyInbox(stuck, LARGE + 1)  # type: ignore[arg-type]
    assert names(box.look(["0", "1", "2"], PATIENCE_S)) == {"0"}
    assert box.look(["1", "2"], 0.2) == [] and box.look(["1", "2"], 0.2) == []
    assert stuck.calls == [["0"], ["1"]]
    monkeypatch.setattr(reply_inbox, "STUCK_S", 0.0)
    assert names(box.look(["1", "2"], 0.5)) == {"2"}
    nobody = ReplyInbox(quiet := Quiet(), LARGE + 1)  # type: ignore[arg-type]
    for _ in range(4):
        assert nobody.look(["0", "1", "2"], PATIENCE_S) == []
    assert quiet.calls == [["0"], ["1"], ["2"], ["0"]]


class Quiet:
    """No reply has come."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def pull_messages(self, numbers: Iterable[str]) -> list[Any]:
        self.calls.append(list(numbers))
        return []
