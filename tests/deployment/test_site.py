"""The whole of a deployment: SuperLink, proxy and three SuperNodes, each host a network namespace."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedpers.deploy import keys
from tests.deployment.matrix import fault
from tests.deployment.site import BIN, SERVER, SPARE, Site, assert_equal, inside, summary

pytestmark = [pytest.mark.deployment, pytest.mark.slow, pytest.mark.xdist_group("site")]  # one site


def told(site: Site, done: Any) -> str:
    return "\n".join([done.stdout, done.stderr, *(site.log(label) for label in site.processes)])[-8000:]


@pytest.mark.parametrize("method", ["pflego", "fedsoft", "ppfl"])
def test_rounds_give_the_bits_of_a_run_in_process(site: Site, tmp_path: Path, method: str) -> None:
    words = [f"method={method}", "model=mlp", "seed=3", "rounds=3", "eval_every=0"]
    out = site.folder / f"run-{method}"
    done = site.fedpers(*site.run_words(*words, f"out={out}"))
    assert done.returncode == 0, told(site, done)
    assert_equal(inside(tmp_path, f"method={method}", "rounds=3", "eval_every=0"), out)
    assert summary(out)["engine"] == "deployment" and (out / ".hydra" / "config.yaml").is_file()


# ---- who is let in ------------------------------------------------------------------------------


def stranger(site: Site, *options: str, ca: Path | None = None, clock: tuple[str, ...] = ()) -> str:
    """What a SuperNode on a host of nobody's says when it tries; it must not get in."""
    (site.folder / "stranger.log").unlink(missing_ok=True)
    site.start(
        "stranger", "stranger", *clock, str(BIN / "flower-supernode"), "--superlink", f"{SERVER}:8443",
        "--max-retries", "1", "--root-certificates", str(ca or site.keys / "ca.crt"), *options,
    )  # fmt: skip
    process = site.processes.pop("stranger")
    try:
        process.wait(timeout=180)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # it leaves its SuperExec behind
    return site.log("stranger")


@fault(12)
def test_an_unknown_key_is_refused(site: Site, tmp_path: Path) -> None:
    private, _ = keys.client(tmp_path, "unknown")
    assert "2004" in stranger(site, "--auth-supernode-private-key", str(private))


@fault(12)
def test_no_key_is_refused(site: Site) -> None:
    assert "2001" in stranger(site)


@fault(12)
def test_a_foreign_authority_is_refused(site: Site, tmp_path: Path) -> None:
    keys.init(tmp_path, [SERVER])
    said = stranger(site, ca=tmp_path / "ca.crt")
    assert "SuperNode ID" not in said and "CERTIFICATE_VERIFY_FAILED" in said


@fault(11)
def test_a_wrong_clock_is_refused(site: Site) -> None:
    if shutil.which("faketime") is None:
        pytest.skip("faketime is not installed: no process can be given another clock")
    key, before = site.folder / SPARE / SPARE, refused_activations(site)
    said = stranger(site, "--auth-supernode-private-key", str(key), clock=("faketime", "-f", "+120s"))
    assert "SuperNode ID" not in said and refused_activations(site) > before


def refused_activations(site: Site) -> int:
    """How many SuperNodes the SuperLink has refused with 401."""
    return (site.folder / "superlink.log").read_text().count('/v1/fleet/activate-node HTTP/1.1" 401')


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


@fault(12)
@pytest.mark.parametrize(
    "path", ["/v1/control/list-runs", "/v1/control/register-node", "/v1/runtime/get-nodes"]
)
def test_the_proxy_lets_nothing_through_but_the_fleet(site: Site, path: str) -> None:
    assert asked(site, f"https://{SERVER}:8443{path}") == "403"
    assert asked(site, f"https://{SERVER}:8443/v1/fleet/../control/list-runs") == "403"


@fault(12)
def test_the_fleet_gives_nothing_to_a_request_without_a_signature(site: Site) -> None:
    """Each of Flower's own paths, asked by hand with the right certificate."""
    from flwr.superlink.routers.fleet.router import router

    paths = sorted(route.path for route in router.routes)  # type: ignore[attr-defined]
    assert "/v1/fleet/pull-messages" in paths and "/v1/fleet/pull-object" in paths
    answers = {path: asked(site, f"https://{SERVER}:8443{path}") for path in paths}
    assert not {path: code for path, code in answers.items() if not code.startswith("4")}


def test_the_superlink_itself_is_out_of_reach(site: Site) -> None:
    assert asked(site, f"https://{SERVER}:8000/health") == "URLError"
    assert asked(site, f"http://{SERVER}:8443/health") == "400"
