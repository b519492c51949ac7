"""Faults of real processes and real links: killed, hung, cut off. The moments are drawn with a seed."""

import contextlib
import csv
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedpers.core.errors import CheckpointError
from fedpers.deploy.ledger import Ledger
from fedpers.deploy.private_state import Version
from fedpers.results import checkpoint
from tests.deployment.matrix import fault
from tests.deployment.site import SERVER, SPARE, Site, assert_equal, inside, wait_until

pytestmark = [pytest.mark.deployment, pytest.mark.faults, pytest.mark.xdist_group("site")]  # one site
SEED = int(os.environ.get("FAULT_SEED", "0"))
METHOD = ["method=pflego", "model=mlp", "seed=3", "eval_every=0"]
PATIENCE_S = 1800.0  # no test waits for this on a quiet machine: all waits are for events
KILLED = [*METHOD, "rounds=4", "checkpoint_every=1"]


def happens(process: subprocess.Popen[str], true: Callable[[], bool]) -> None:
    """Wait for an event of a run, on a loaded machine for very long; but not for a run that has ended."""

    def look() -> bool:
        assert process.poll() is None, "the run has ended before it happened"
        return true()

    wait_until(look, PATIENCE_S)


def moment(process: subprocess.Popen[str], out: Path, what: str) -> None:
    """Wait until a round of a run has ended, then for a while: the round and the while are drawn."""
    rng = random.Random(f"{SEED} {what}")
    after, wait = rng.randint(1, 2), rng.uniform(0.0, 3.0)
    happens(process, lambda: (checkpoint.last_round(out) or 0) >= after)
    time.sleep(wait)


def ended(site: Site, process: subprocess.Popen[str]) -> str:
    """What a run that has to end well has said."""
    try:
        code = process.wait(timeout=PATIENCE_S)
    finally:
        process.kill()
    said = (site.folder / "follow.log").read_text()
    assert code == 0, said + site.log("superlink")
    return said


@fault(6)
def test_a_killed_server_app_leaves_no_trace_in_the_result(site: Site, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = site.follow(*KILLED, f"out={out}")
    moment(process, out, "server app")
    (app,) = site.pids(SERVER, "flwr-serverapp")
    os.kill(app, signal.SIGKILL)
    assert "submitting again (1 of 2)" in ended(site, process)
    assert_equal(inside(tmp_path / "inside", *KILLED), out)


@fault(7)
def test_a_killed_superlink_leaves_no_trace_in_the_result(site: Site, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = site.follow(*KILLED, f"out={out}")
    moment(process, out, "SuperLink")
    site.kill("superlink")
    site.start_server()
    assert "submitting again (1 of 2)" in ended(site, process)
    assert_equal(inside(tmp_path / "inside", *KILLED), out)


def test_a_server_restored_from_its_backup_knows_its_devices(site: Site, tmp_path: Path) -> None:
    """Keys, and a copy of link.db taken while the SuperLink ran; the models on their way are lost."""
    with sqlite3.connect(site.folder / "superlink.db") as live, sqlite3.connect(tmp_path / "copy.db") as copy:
        live.backup(copy)
    shutil.copytree(site.keys, tmp_path / "keys")
    site.kill("superlink")
    for path in site.folder.glob("superlink*.db*"):
        path.unlink()
    shutil.rmtree(site.keys)
    shutil.copytree(tmp_path / "keys", site.keys)
    shutil.copy(tmp_path / "copy.db", site.folder / "superlink.db")
    site.start_server()
    out = tmp_path / "run"
    ended(site, site.follow(*KILLED, f"out={out}"))
    assert_equal(inside(tmp_path / "inside", *KILLED), out)


# ---- devices ------------------------------------------------------------------------------------


def taken(out: Path, name: str) -> Version:
    """The version of a client's state that the server took last, as of the newest checkpoint."""

    def read() -> Ledger | None:
        ledger = Ledger()
        with contextlib.suppress(CheckpointError, OSError):  # the next one took its place
            ledger.load(max((out / "checkpoint").glob("round-*")))
            return ledger
        return None

    ledger = wait_until(read)
    return ledger.since.get(ledger.names.index(name), (0, 0))


def total(out: Path, column: str) -> int:
    with (out / "metrics.csv").open(newline="") as file:
        return sum(int(row[column] or 0) for row in csv.DictReader(file))


@fault(1, 2, 10)
def test_rounds_go_on_while_devices_are_killed_hung_and_cut_off(site: Site, tmp_path: Path) -> None:
    """Three faults of three devices at one time; a fourth device goes on, and the three come back.

    A device that comes back has all the rounds that it needs: the run ends when all have been seen.
    """
    out = tmp_path / "run"
    site.start_device(SPARE)
    terms = ["data.num_clients=4", "engine.min_clients=4", "engine.deadline_s=90"]
    skip = ["failures=skip", "engine.min_replies=1", "engine.retries=0"]
    process = site.follow(*METHOD, "rounds=9999", "checkpoint_every=1", *terms, *skip, f"out={out}")
    try:
        moment(process, out, "devices")
        (node,) = site.pids("site-0", "flower-supernode")
        (client,) = site.pids("site-1", "fedpers.deploy.resident")
        os.kill(node, signal.SIGKILL)
        os.kill(client, signal.SIGSTOP)
        site.network.cut("site-2")
        before = checkpoint.last_round(out) or 0  # a reply to the next round may be in already
        happens(process, lambda: taken(out, SPARE) >= (before + 3, 0))
        assert taken(out, "site-2") <= (before + 1, 0)
        back = checkpoint.last_round(out) or 0
        site.network.heal("site-2")
        for name in site.names:
            happens(process, lambda name=name: taken(out, name) > (back, 0))  # type: ignore[misc]
        assert client not in site.pids("site-1", "fedpers.deploy.resident")
        assert total(out, "failures") >= 3 and total(out, "reinitialised") == 0
    finally:
        site.network.heal("site-2")
        process.send_signal(signal.SIGINT)
        process.wait(timeout=PATIENCE_S)
        site.kill(SPARE)
        wait_until(lambda: not site.pids(SERVER, "flwr-serverapp"), PATIENCE_S)
