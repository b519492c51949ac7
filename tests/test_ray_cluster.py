"""Ray on two machines that share no folder, of which one dies in the middle of a run."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedpers.app.run import execute
from fedpers.checks.case import same
from fedpers.config.compose import load
from fedpers.engines.memory.row_store import RowStore
from fedpers.results import checkpoint

pytestmark = pytest.mark.ray
SMALL = [
    "data.num_clients=4",
    "method=pflego",
    "rounds=8",
    "eval_every=0",
    "checkpoint_every=1",
    "model=logistic",
]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """(address, second node): each node has one CPU; the second sees an empty folder instead of `run`."""
    if os.geteuid() != 0:
        pytest.skip("a node with other folders needs a mount namespace, which needs root")
    utils = pytest.importorskip("ray.cluster_utils")
    handler = signal.getsignal(signal.SIGTERM)  # a node of Ray's in this process sets its own, and leaves it
    made = utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    (tmp_path / "run").mkdir()
    hide = f'mount -t tmpfs none {tmp_path}/run && exec "$@"'
    ray = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--num-cpus=1"]
    node = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", hide, "sh", *ray, f"--address={made.address}"],
        start_new_session=True,
    )
    try:
        until = time.monotonic() + 120
        while sum(n["Alive"] for n in made.global_state.node_table()) < 2:
            assert time.monotonic() < until and node.poll() is None, "the second node did not come"
            time.sleep(0.2)
        yield made.address, node
    finally:
        kill(node)
        made.shutdown()
        signal.signal(signal.SIGTERM, handler)


def kill(node: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(node.pid, signal.SIGKILL)
    node.wait(timeout=60)


def test_no_client_forgets_when_a_machine_dies(
    tmp_path: Path, cluster: tuple[str, "subprocess.Popen[bytes]"]
) -> None:
    """The end of the run is that of a run in process, bit for bit, and so is what clients remember."""
    address, node = cluster
    execute(load(SMALL), tmp_path / "inprocess")
    out, killed = tmp_path / "run", []

    def watch() -> None:
        until = time.monotonic() + 240
        while (checkpoint.last_round(out) or 0) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        kill(node)
        killed.append(checkpoint.last_round(out))

    watcher = threading.Thread(target=watch)
    watcher.start()
    execute(load([*SMALL, "engine=ray", f"engine.address={address}"]), out)
    watcher.join()
    assert killed[0] and killed[0] < 8
    assert same(*(remembered(folder) for folder in (tmp_path / "inprocess", out)))
    assert (tmp_path / "inprocess" / "clients.csv").read_bytes() == (out / "clients.csv").read_bytes()


def remembered(out: Path) -> object:
    """The server's state and every client's."""
    store = RowStore(out / "memory")
    _, state = checkpoint.load(out, store)
    return state, store.states
