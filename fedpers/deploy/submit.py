"""Runs on a SuperLink: submit an app that imports the installed package, follow it, repeat it after a crash.

The bundle that Flower carries holds two lines of code and the configuration. What runs is the package as
it is installed on the server and on the devices, kernels included.
"""

import csv
import ipaddress
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomli_w

from fedpers.config.run_config import RunConfig, to_mapping
from fedpers.core.errors import ConfigError, FedpersError, ReplyError
from fedpers.deploy import tls
from fedpers.deploy.diary import missing

log = logging.getLogger("fedpers")
ADDRESS = "127.0.0.1:8000"  # Flower's own default
START_S, GONE_S = 300.0, 5.0  # to begin, and to be sure that nobody goes on
LOOK_S = 1.0
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
NOTHING_SINCE = ("finished", "failed")  # how a run can have ended


class Link:
    """A SuperLink's Control API, through Flower's command line."""

    def __init__(self, home: Path, address: str | None, ca: str | None) -> None:
        self.home, self.address, self.ca = home, address or ADDRESS, ca
        check_address(self.address, ca)
        secure: dict[str, Any] = {"insecure": True} if ca is None else {"root-certificates": str(_file(ca))}
        connection = {"address": self.address, **secure}
        home.mkdir(parents=True, exist_ok=True)
        config = {"superlink": {"default": "fedpers", "fedpers": connection}}
        (home / "config.toml").write_text(tomli_w.dumps(config), encoding="utf-8")

    def flwr(self, *arguments: str) -> dict[str, Any]:
        """The JSON that a command of Flower's prints.

        Raises:
            FedpersError: it failed; with what it said.
        """
        command = [str(Path(sys.executable).with_name("flwr")), *arguments, "--format", "json"]
        environment = os.environ | QUIET | {"FLWR_HOME": str(self.home)} | past_proxies(self.address)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        try:
            found = json.loads(done.stdout[done.stdout.index("{") :])
        except ValueError:
            found = {"success": False, "error-message": (done.stderr or done.stdout).strip()[-500:]}
        if not found.get("success"):
            why = found.get("error-message") or "refused"
            wrong = tls.problem(self.address, self.ca) if self.ca else None
            raise FedpersError(f"SuperLink {self.address}: {wrong or why}{proxy_hint(self.address)}")
        return dict(found)

    def submit(self, bundle: Path) -> str:
        """Start a run of the app in `bundle`; returns its id."""
        return str(self.flwr("run", str(bundle), "fedpers")["run-id"])

    def status(self, run: str) -> str:
        """Such as running or finished:failed; unknown while the SuperLink cannot be reached."""
        try:
            runs = self.flwr("list", "fedpers", "--run-id", run)["runs"]
        except FedpersError as error:
            log.warning("%s", error)
            return "unknown"
        return str(runs[0]["status"]) if runs else "unknown"

    def stop(self, run: str) -> None:
        """End a run."""
        self.flwr("stop", run, "fedpers")


def is_loopback(address: str) -> bool:
    """Whether HOST:PORT is on this machine."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def past_proxies(address: str) -> dict[str, str]:
    """Environment variables by which this machine is reached without a proxy; {} for another machine."""
    if not is_loopback(address):
        return {}
    before = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    hosts = ["127.0.0.1", "localhost", "::1", address.rpartition(":")[0]]
    text = ",".join(dict.fromkeys([*filter(None, before.split(",")), *hosts]))
    return {"NO_PROXY": text, "no_proxy": text, "no_grpc_proxy": text}


def proxy_hint(address: str) -> str:
    """That a proxy stands between this machine and an address; "" if none does."""
    names = [n for n in ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY") if os.environ.get(n)]
    if not names or is_loopback(address):
        return ""
    host = address.rpartition(":")[0]
    return f" ({names[0]}={os.environ[names[0]]} is set; NO_PROXY={host} would go past it)"


def check_address(address: str, ca: str | None) -> None:
    """Refuse to speak without TLS to another machine.

    Raises:
        ConfigError: the address is no loopback address and there is no certificate.
    """
    if not is_loopback(address) and ca is None:
        raise ConfigError(
            f"engine.address={address}: only loopback goes without TLS; give engine.ca=keys/ca.crt"
        )


def _file(ca: str) -> Path:
    path = Path(ca).expanduser().resolve()
    if not path.is_file():
        raise ConfigError(f"engine.ca={ca}: there is no such file; make it: fedpers keys init --host NAME")
    return path


def write_bundle(folder: Path, config: Mapping[str, Any]) -> Path:
    """The app that is submitted: two modules of two lines, and the run's configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    for half, module in (("server", "fedpers.app.deployed"), ("client", "fedpers.deploy.device")):
        code = f"import {module} as installed\n\napp = installed.app\n"  # Flower looks for an assignment
        (folder / f"{half}.py").write_text(code, encoding="utf-8")
    parts = {"serverapp": "server:app", "clientapp": "client:app"}
    app = {"publisher": "fedpers", "components": parts, "config": {"config": json.dumps(config)}}
    project = {"name": "fedpers-run", "version": "1.0.0", "license": "Apache-2.0", "dependencies": []}
    text = tomli_w.dumps({"project": project, "tool": {"flwr": {"app": app}}})
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    return folder


def run_on_devices(cfg: RunConfig, out: Path) -> dict[str, Any]:
    """Run on the SuperLink's devices to the end; returns the content of summary.json.

    Raises:
        ConfigError: the data is not the devices' own, or TLS is missing.
        ReplyError: the run failed, with the reason.
        FedpersError: the server side crashed more often than engine.restarts.
    """
    check_data(cfg)
    out = out.resolve()
    with tempfile.TemporaryDirectory(prefix="fedpers-link-") as scratch:
        link = Link(Path(scratch) / "home", cfg.engine.address, cfg.engine.ca)
        for attempt in range(cfg.engine.restarts + 1):
            if attempt:
                log.warning(
                    "the server side crashed; submitting again (%d of %d)", attempt, cfg.engine.restarts
                )
            summary = _submit_and_follow(link, cfg, out, Path(scratch) / f"app{attempt}")
            if summary.get("status") == "finished":
                return summary
            if summary.get("status") == "failed":
                raise ReplyError(str(summary.get("error", "failed")))
    raise FedpersError(
        f"the server side crashed {cfg.engine.restarts + 1} times (engine.restarts={cfg.engine.restarts}); "
        f"see the SuperLink's log, then go on: fedpers run resume={out}"
    )


def check_data(cfg: RunConfig) -> None:
    """Refuse data that is not on devices.

    Raises:
        ConfigError: data is a set that this machine would build.
    """
    if cfg.data.name != "device":
        raise ConfigError(
            f"engine=deployment data={cfg.data.name}: devices hold their own data; choose data=device "
            "data.input_shape=[...] data.num_classes=..., and name the file in each node-config"
        )


def _submit_and_follow(link: Link, cfg: RunConfig, out: Path, bundle: Path) -> dict[str, Any]:
    resume = str(out) if (out / "checkpoint").is_dir() else None
    config = to_mapping(replace(cfg, out=str(out), resume=resume))
    (out / "summary.json").unlink(missing_ok=True)
    run = _patiently(link, write_bundle(bundle, config))
    try:
        return _follow(link, run, out, cfg.rounds)
    except KeyboardInterrupt:
        link.stop(run)
        raise


def _patiently(link: Link, bundle: Path, patience: float = 120.0) -> str:
    """Submit; a SuperLink that is being restarted is waited for."""
    until = time.monotonic() + patience
    while True:
        try:
            return link.submit(bundle)
        except FedpersError as error:
            if time.monotonic() > until:
                raise
            log.warning("%s; trying again", error)
            time.sleep(5.0)


def _follow(link: Link, run: str, out: Path, rounds: int) -> dict[str, Any]:
    """The summary that the run leaves; empty if its server side ends without one."""
    started, seen, quiet_since = False, 0, time.monotonic()
    while True:
        summary = _read_json(out / "summary.json")
        if summary.get("status") in NOTHING_SINCE:
            return summary
        seen = _tell_rounds(out, seen, rounds)
        if _is_held(out):
            started, quiet_since = True, time.monotonic()
        elif time.monotonic() - quiet_since > (GONE_S if started else START_S) or (
            not started and link.status(run).startswith("finished")
        ):
            return _read_json(out / "summary.json")
        time.sleep(LOOK_S if started else 5 * LOOK_S)


def _is_held(out: Path) -> bool:
    """Whether a process writes the run directory now."""
    import fcntl

    with (out / ".lock").open("a") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _tell_rounds(out: Path, seen: int, rounds: int) -> int:
    """Say what is new in metrics.csv; returns the last round told."""
    try:
        with (out / "metrics.csv").open(newline="", encoding="utf-8") as file:
            rows = [r for r in csv.DictReader(file) if r["split"] == "train" and int(r["round"]) > seen]
    except (OSError, KeyError, ValueError):
        return seen
    for row in rows:
        away = "; ".join(f"{name} ({why})" for name, why in missing(out, int(row["round"])).items())
        text = "round %s of %d: %s of %s answers" + ("; missing: %s" if away else "%s")
        log.info(text, row["round"], rounds, row.get("answered"), row.get("asked"), away)
    return int(rows[-1]["round"]) if rows else seen


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}
