"""Large models do not stop the SuperLink: its database is divided, or the run is refused before it begins."""

import os
import sqlite3
import threading
import time
from pathlib import Path

import pytest

from fedpers.core.errors import FedpersError
from fedpers.deploy import device_grid, superlink
from tests.deployment.fake_link import Link, configs, on_devices


@pytest.fixture
def divided(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.supercore import sql_mixin
    from flwr.supercore.corestate.sql_corestate import SqlCoreState
    from flwr.superlink import config_loader

    monkeypatch.setattr(sql_mixin, "SQLITE_PRAGMAS", sql_mixin.SQLITE_PRAGMAS)  # put back afterwards
    monkeypatch.setattr(config_loader, "ObjectStoreFactory", config_loader.ObjectStoreFactory)
    name = "_cleanup_expired_task_tokens"
    monkeypatch.setattr(SqlCoreState, name, getattr(SqlCoreState, name))
    superlink._divide()


def stores(database: str) -> tuple[object, object]:
    """Flower's (object store, state of the link) of a SuperLink with this database."""
    from flwr.superlink.config_loader import get_federation_manager, get_objectstore_linkstate_factories

    objects, state = get_objectstore_linkstate_factories(database, get_federation_manager())
    return objects.store(), state.state()


def test_a_heartbeat_does_not_wait_for_a_model_that_is_written(tmp_path: Path, divided: None) -> None:
    """While somebody holds the models' database for longer than Flower waits, nodes are served at once."""
    _, state = stores(str(tmp_path / "link.db"))
    assert (tmp_path / "link.db").is_file() and (tmp_path / "link-objects.db").is_file()
    with sqlite3.connect(tmp_path / "link-objects.db", isolation_level=None) as writer:
        writer.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        node = state.create_node("", "name", b"key", 30.0)  # type: ignore[attr-defined]
        assert node and time.monotonic() - began < 4
        writer.execute("ROLLBACK")


def test_who_writes_a_model_waits_longer_than_flower_does(tmp_path: Path, divided: None) -> None:
    objects, _ = stores(str(tmp_path / "link.db"))
    writer = sqlite3.connect(tmp_path / "link-objects.db", isolation_level=None, check_same_thread=False)
    writer.execute("BEGIN IMMEDIATE")
    threading.Timer(6.5, lambda: writer.execute("ROLLBACK")).start()  # Flower gives up after 5 s
    began = time.monotonic()
    objects.clear()  # type: ignore[attr-defined]
    assert time.monotonic() - began > 6


def test_who_asks_for_a_run_does_not_wait_for_who_writes(
    tmp_path: Path, divided: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower writes at each such request; a hundred nodes ask for every piece of a model."""
    _, state = stores(str(tmp_path / "link.db"))
    state.get_run_status({1})  # type: ignore[attr-defined]
    writer = sqlite3.connect(tmp_path / "link.db", isolation_level=None, check_same_thread=False)
    writer.execute("BEGIN IMMEDIATE")
    threading.Timer(4.5, lambda: writer.execute("ROLLBACK")).start()
    monkeypatch.setattr(superlink, "LOOK_S", 1e9)
    began = time.monotonic()
    state.get_run_status({1})  # type: ignore[attr-defined]
    assert time.monotonic() - began < 4


def test_what_is_done_seldom_is_done_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    class Link:
        looks = 0

        def look(self) -> None:
            self.looks += 1

    clock = iter((0.0, 0.9, 1.0, 1.9, 2.1))
    monkeypatch.setattr(superlink.time, "monotonic", lambda: next(clock))
    link, seen = Link(), []
    for _ in range(5):
        superlink.seldom(Link.look)(link)
        seen.append(link.looks)
    assert seen == [1, 1, 2, 2, 3]


@pytest.mark.parametrize("database", [":flwr-in-memory:", ":memory:"])
def test_a_superlink_without_a_file_stays_in_memory(database: str) -> None:
    assert superlink.objects_of(database) == database


def test_a_large_order_is_refused_before_it_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_grid, "LOOK_S", 0.01)
    monkeypatch.setattr(superlink, "PLAIN_MB", 0.01)
    monkeypatch.delenv(superlink.MARK, raising=False)
    _, cfg = configs("fedavg", 1)
    link = Link(tmp_path, cfg)
    with pytest.raises(
        FedpersError, match=r"0 MB; flower-superlink.*start the SuperLink as `fedpers superlink`"
    ):
        on_devices(link, cfg, tmp_path / "out")
    assert {h["kind"] for _, h in link.sent} == {"query"}
    monkeypatch.setitem(os.environ, superlink.MARK, "1")
    on_devices(Link(tmp_path, cfg), cfg, tmp_path / "again")
