"""The whole of a deployment: SuperLink, proxy and three SuperNodes, each host a network namespace."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fedpers.app.run import execute as run_inside
from fedpers.config.compose import load
from fedpers.core.pytree import leaves
from fedpers.deploy import keys
from fedpers.results import checkpoint
from tests.deployment.site import BIN, SERVER, Site, processes_in, summary, why_not

pytestmark = [pytest.mark.deployment, pytest.mark.slow, pytest.mark.xdist_group("site")]  # one site
DATA = ("data=digits", "data.num_clients=3", "data.partition=dirichlet", "data.alpha=1.0", "seed=3")
REASON = why_not()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if REASON is not None:
        pytest.skip(REASON)
    made = Site(tmp_path_factory.mktemp("site"), methods_data=DATA)
    made.network.add("stranger")
    try:
        made.start_server()
        made.start_proxy()
        made.admit()
        for name in made.names:
            made.start_device(name)
        yield made
    finally:
        made.close()


def inside(folder: Path, *overrides: str) -> Path:
    cfg = load([*DATA, "model=mlp", *overrides])
    looped = dataclasses.replace(cfg.engine, runner="loop")  # a device runs alone too
    run_inside(dataclasses.replace(cfg, engine=looped), folder)
    return folder


def assert_equal(a: Path, b: Path) -> None:
    for x, y in zip(leaves(checkpoint.load(a, None)[1]), leaves(checkpoint.load(b, None)[1]), strict=True):
        assert torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
    assert (a / "clients.csv").read_bytes() == (b / "clients.csv").read_bytes()


def told(site: Site, done: Any) -> str:
    return "\n".join([done.stdout, done.stderr, *(site.log(label) for label in site.processes)])[-8000:]


@pytest.mark.parametrize("method", ["pflego", "fedsoft", "ppfl"])
def test_five_rounds_give_the_bits_of_a_run_in_process(site: Site, tmp_path: Path, method: str) -> None:
    words = [f"method={method}", "model=mlp", "seed=3", "rounds=5", "eval_every=0"]
    out = site.folder / f"run-{method}"
    done = site.fedpers(*site.run_words(*words, f"out={out}"))
    assert done.returncode == 0, told(site, done)
    assert_equal(inside(tmp_path, f"method={method}", "rounds=5", "eval_every=0"), out)
    assert summary(out)["engine"] == "deployment" and (out / ".hydra" / "config.yaml").is_file()


def server_app(site: Site) -> int | None:
    """The process id of the server app, once there is one."""
    for pid in processes_in(site.network.hosts[SERVER]):
        try:
            if b"flwr-serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        except OSError:
            continue
    return None


def wait_until(true: Any, seconds: float = 150.0) -> Any:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := true():
            return found
        time.sleep(0.2)
    raise AssertionError("it did not happen")


# ---- who is let in ------------------------------------------------------------------------------


def stranger(site: Site, *options: str, ca: Path | None = None) -> str:
    """What a SuperNode on a host of nobody's says when it tries; it must not get in."""
    site.start(
        "stranger", "stranger", str(BIN / "flower-supernode"), "--superlink", f"{SERVER}:8443",
        "--max-retries", "1", "--root-certificates", str(ca or site.keys / "ca.crt"), *options,
    )  # fmt: skip
    process = site.processes.pop("stranger")
    try:
        assert process.wait(timeout=90) != 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # it leaves its SuperExec behind
    return site.log("stranger")


def test_an_unknown_key_is_refused(site: Site, tmp_path: Path) -> None:
    private, _ = keys.client(tmp_path, "unknown")
    assert "2004" in stranger(site, "--auth-supernode-private-key", str(private))


def test_no_key_is_refused(site: Site) -> None:
    assert "2001" in stranger(site)


def test_a_foreign_authority_is_refused(site: Site, tmp_path: Path) -> None:
    keys.init(tmp_path, [SERVER])
    assert "SuperNode ID" not in stranger(site, ca=tmp_path / "ca.crt")


def asked(site: Site, url: str) -> str:
    """The status of a POST from a site's host."""
    code = (
        "import ssl,sys,urllib.request as u,urllib.error as e\n"
        "c=ssl.create_default_context(cafile=sys.argv[2])\n"
        "try: print(u.urlopen(u.Request(sys.argv[1],data=b'x'),context=c,timeout=10).status)\n"
        "except e.HTTPError as x: print(x.code)\n"
        "except OSError as x: print(type(x).__name__)\n"
    )
    ca = str(site.keys / "ca.crt")
    command = site.command("site-0", sys.executable, "-c", code, url, ca)
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(
    "path", ["/v1/control/list-runs", "/v1/control/register-node", "/v1/runtime/get-nodes"]
)
def test_the_proxy_lets_nothing_through_but_the_fleet(site: Site, path: str) -> None:
    assert asked(site, f"https://{SERVER}:8443{path}") == "403"
    assert asked(site, f"https://{SERVER}:8443/v1/fleet/../control/list-runs") == "403"


def test_the_superlink_itself_is_out_of_reach(site: Site) -> None:
    assert asked(site, f"https://{SERVER}:8000/health") == "URLError"
    assert asked(site, f"http://{SERVER}:8443/health") == "400"
