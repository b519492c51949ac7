"""Faults that need no network, each at a time that is drawn with a seed; and the matrix of all of them."""

import importlib
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord, Message

from fedpers.app.run import execute as run_inside
from fedpers.core.errors import ReplyError
from fedpers.deploy import device_grid, resident
from fedpers.flower.messages import error_reply
from tests.deployment.fake_link import (
    Link,
    assert_equal_states,
    column,
    configs,
    looped,
    on_devices,
    unbundled,
    with_nan,
)
from tests.deployment.matrix import MATRIX, TESTS, fault

ROUNDS = 4
PAGE = Path(__file__).parents[2] / "docs" / "deployment-rounds.md"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_grid, "LOOK_S", 0.01)


def drawn(what: str, first: int = 1) -> tuple[str, int]:
    """(client, round) at which a fault happens."""
    rng = random.Random(what)
    return f"site-{rng.randrange(3)}", rng.randint(first, ROUNDS)


def once(name: str, t: int, kind: str = "train") -> Callable[[str, dict[str, Any]], bool]:
    """A condition that holds for the first message of that kind to a client in a round."""
    done: list[int] = []

    def holds(who: str, header: dict[str, Any]) -> bool:
        if (who, header["t"], header["kind"]) == (name, t, kind) and not done:
            done.append(1)
            return True
        return False

    return holds


def at_that_time(t: int) -> list[str]:
    """A column of counts in which there is one, in round t."""
    return ["1" if number == t else "0" for number in range(1, ROUNDS + 1)]


# ---- replies ------------------------------------------------------------------------------------


def failure(reply: Message) -> Message:
    error = error_reply(reply, "RuntimeError: broken")
    error.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
    return error


def wrong_shape(reply: Message) -> Message:
    reply.content["arrays"] = ArrayRecord([a[..., :1] for a in unbundled(reply.content)])
    return reply


def garbage(reply: Message) -> Message:
    config: Any = reply.content["config"]
    config["skeleton"] = '{"r": "os.system", "f": {}}'
    return reply


SPOILED: dict[str, tuple[Callable[[Message], Message | None], str]] = {
    "the reply is lost after the state was written": (lambda reply: None, "late"),
    "the client fails": (failure, "refused"),
    "NaN": (with_nan, "refused"),
    "another shape": (wrong_shape, "refused"),
    "a reply that cannot be read": (garbage, "refused"),
}


@pytest.fixture(scope="module", params=["pflego", "scd"])
def undisturbed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """(method, folder of its run in this process), the same for all faults."""
    out = tmp_path_factory.mktemp(request.param)
    run_inside(looped(configs(request.param, ROUNDS)[0]), out)
    return request.param, out


@fault(3, 4, 5)
@pytest.mark.parametrize("what", SPOILED)
def test_a_fault_that_passes_leaves_no_trace_in_the_result(
    tmp_path: Path, what: str, undisturbed: tuple[str, Path]
) -> None:
    """The order goes out again, and the client takes up the state that the server last took."""
    method, same = undisturbed
    _, outside = configs(method, ROUNDS)
    (spoil, counted), (name, t) = SPOILED[what], drawn(what + method)
    holds = once(name, t)
    link = Link(tmp_path, outside, lambda who, h, reply: spoil(reply) if holds(who, h) else reply)
    out = on_devices(link, outside, tmp_path / "devices")
    assert_equal_states(same, out)
    assert column(out, counted) == at_that_time(t) and column(out, "retried") == at_that_time(t)


# ---- a device's disk -----------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Gives a device a file system of 64 kB for its states."""
    made: list[Path] = []

    def mount(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir(mode=0o700)
        command = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "none", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no file system can be made here: {done.stderr.strip()}")
        made.append(folder)
        return folder

    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("a small file system needs root and mount")
    yield mount
    for folder in made:
        subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Write until there is no room."""
    with (folder / "ballast").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass


@fault(8)
def test_a_full_disk_is_counted_and_the_version_before_is_used(
    tmp_path: Path, small_disk: Callable[[str], Path]
) -> None:
    inside, outside = configs("pflego", ROUNDS)
    name, t = drawn("full disk")
    folder, before, reasons = small_disk(name), once(name, t - 1, "evaluate"), []

    def happen(who: str, header: dict[str, Any], reply: Message) -> Message:
        if before(who, header):
            fill(folder)
        if who == name and reply.has_error():
            reasons.append(reply.error.reason)
            (folder / "ballast").unlink()
        return reply

    out = on_devices(Link(tmp_path, outside, happen), outside, tmp_path / "devices")
    run_inside(looped(inside), tmp_path / "inside")
    assert_equal_states(tmp_path / "inside", out)
    assert [("No space left" in r, str(tmp_path) in r) for r in reasons] == [(True, False)]
    assert column(out, "refused") == at_that_time(t)


def wiped(tmp_path: Path, what: str, lost_state: str) -> tuple[str, int, Any, Link]:
    """(client, round, run, link): the client's states are removed before its order of that round."""
    _, outside = configs("pflego", ROUNDS)
    name, t = drawn(what, first=2)
    before = once(name, t - 1, "evaluate")

    def wipe(who: str, header: dict[str, Any], reply: Message) -> Message:
        if before(who, header):
            shutil.rmtree(tmp_path / who)
            resident._store.cache_clear()
        return reply

    link = Link(tmp_path, outside, wipe)
    link.options = {"lost_state": lost_state}
    return name, t, outside, link


@fault(9)
def test_a_wiped_client_is_refused_by_name(tmp_path: Path) -> None:
    name, t, outside, link = wiped(tmp_path, "wiped", "refuse")
    lost = rf"round {t}: .*{name}: StateLost: client {name} has lost its state of round {t - 1}"
    with pytest.raises(ReplyError, match=lost):
        on_devices(link, outside, tmp_path / "devices")


@fault(9)
def test_a_wiped_client_that_may_begin_anew_is_counted(tmp_path: Path) -> None:
    _, t, outside, link = wiped(tmp_path, "wiped and allowed", "reinitialise")
    out = on_devices(link, outside, tmp_path / "devices")
    assert column(out, "reinitialised") == at_that_time(t) and column(out, "refused") == ["0"] * ROUNDS


@fault(12)
def test_the_second_node_of_a_name_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, outside = configs("fedavg", 1)
    link = Link(tmp_path, outside)
    link.nodes[300] = "site-1"
    on_devices(link, outside, tmp_path / "out")
    assert "node 300 (site-1) is ignored: it says it is site-1, as another node does" in caplog.text
    assert sorted(who for who, h in link.sent if h["kind"] == "train") == ["site-0", "site-1", "site-2"]


# ---- the matrix ---------------------------------------------------------------------------------


def test_every_fault_has_a_test_and_the_page_says_how_it_ends() -> None:
    for module in ("test_site", "test_site_faults", "test_mutations", "test_policy"):
        importlib.import_module(f"tests.deployment.{module}")
    importlib.import_module("tests.test_compiled")
    assert sorted(TESTS) == sorted(MATRIX) == list(range(1, 16))
    table = PAGE.read_text(encoding="utf-8").split("| # | what happens | outcome |")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    assert rows == [[str(number), *texts] for number, texts in MATRIX.items()]
