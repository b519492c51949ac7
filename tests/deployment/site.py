"""A SuperLink and its SuperNodes as real processes, each host a network namespace where root can make one."""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fedpers.app.run import execute as run_inside
from fedpers.config.compose import load
from fedpers.core import sums
from fedpers.core.pytree import leaves
from fedpers.deploy import keys
from fedpers.deploy.deal import deal
from fedpers.learning.kernels import library as kernels
from fedpers.results import checkpoint
from tests.deployment.fake_link import clients_of

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[2]
NET, SERVER, SPARE = "10.77.0", "superlink", "spare"
DATA = ("data=digits", "data.num_clients=3", "data.partition=dirichlet", "data.alpha=1.0", "seed=3")
# A service manager for a device: Flower refuses the key of a node that crashed for about a minute.
KEEP_UP = 'while :; do "$@"; sleep 5; done'
CLEAN = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3",  # seconds; 1 by default, for each message
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}


def why_not() -> str | None:
    """Why no hosts can be made here; None if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "nginx"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    made = subprocess.run(["ip", "netns", "add", "fedpers-try"], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", "fedpers-try"], capture_output=True, check=False)
    return None if made.returncode == 0 else f"no network namespaces here: {made.stderr.strip()}"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def processes_in(namespace: str) -> list[int]:
    found = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


@dataclass
class Network:
    """A bridge, and a namespace a host; all names carry this process's number."""

    hosts: dict[str, str] = field(default_factory=dict)  # host -> namespace
    addresses: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.switch = f"fp{os.getpid()}sw"
        ip("netns", "add", self.switch)
        ip("-n", self.switch, "link", "add", "br0", "type", "bridge")
        ip("-n", self.switch, "link", "set", "br0", "up")

    def add(self, host: str) -> None:
        number = len(self.hosts) + 1
        name = f"fp{os.getpid()}h{number}"
        self.hosts[host], self.addresses[host] = name, f"{NET}.{number}"
        ip("netns", "add", name)
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", name, "netns", self.switch)
        ip("-n", self.switch, "link", "set", name, "master", "br0", "up")
        ip("-n", name, "addr", "add", f"{NET}.{number}/24", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        folder = Path("/etc/netns") / name
        folder.mkdir(parents=True, exist_ok=True)
        server = "127.0.0.1" if host == SERVER else self.addresses[SERVER]
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{server} {SERVER}\n")

    def cut(self, host: str) -> None:
        ip("-n", self.switch, "link", "set", self.hosts[host], "down")

    def heal(self, host: str) -> None:
        ip("-n", self.switch, "link", "set", self.hosts[host], "up")

    def close(self) -> None:
        for name in (*self.hosts.values(), self.switch):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
            shutil.rmtree(Path("/etc/netns") / name, ignore_errors=True)


def lend_kernels(home: Path) -> None:
    """Give a host the kernels that are compiled here: all hosts at once took minutes to compile their own."""
    for made in (sums.library(), kernels.library()):
        if made is not None:
            folder = home / ".cache" / "fedpers"
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(made._name, folder)


class Site:
    """One server, three devices, a spare one and a stranger's host, with TLS, keys and proxy."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.network = folder, Network()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.names = [f"site-{k}" for k in range(3)]
        for host in (SERVER, *self.names, SPARE, "stranger"):
            self.network.add(host)
            lend_kernels(folder / host)
        self.keys = folder / "keys"
        keys.init(self.keys, [SERVER, self.network.addresses[SERVER]])
        for name in (*self.names, SPARE):
            keys.client(folder / name, name)
        cfg = load(list(DATA))
        first, *_ = deal(cfg.data, cfg.seed, folder / "data")
        shutil.copy(first, folder / "data" / f"{SPARE}.npz")

    # ---- processes ------------------------------------------------------------------------------

    def command(self, host: str, *words: str) -> list[str]:
        return ["ip", "netns", "exec", self.network.hosts[host], *words]

    def environment(self, host: str, more: Mapping[str, str] | None = None) -> dict[str, str]:
        home = {"FLWR_HOME": str(self.folder / host / "flwr"), "HOME": str(self.folder / host)}
        return os.environ | CLEAN | home | {"PATH": f"{BIN}:{os.environ['PATH']}"} | dict(more or {})

    def start(self, host: str, label: str, *words: str) -> None:
        (self.folder / host).mkdir(exist_ok=True)
        log = (self.folder / f"{label}.log").open("ab")
        self.processes[label] = subprocess.Popen(
            self.command(host, *words),
            env=self.environment(host),
            cwd=self.folder / host,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def start_server(self) -> None:
        self.start(
            SERVER, "superlink", str(BIN / "fedpers"), "superlink",
            "--ssl-ca-certfile", str(self.keys / "ca.crt"),
            "--ssl-certfile", str(self.keys / "server.crt"),
            "--ssl-keyfile", str(self.keys / "server.key"),
            "--host", "127.0.0.1", "--port", "8000", "--enable-supernode-auth",
            "--database", str(self.folder / "superlink.db"), "--disable-runtime-dependency-installation",
        )  # fmt: skip
        self.wait_for("superlink")

    def start_proxy(self) -> None:
        conf = (ROOT / "fedpers" / "deploy" / "files" / "nginx.conf").read_text()
        path = self.folder / "nginx.conf"
        path.write_text(
            conf.replace("/tmp/", f"{self.folder}/nginx-").replace("/run/secrets", str(self.keys))
        )
        self.start(SERVER, "nginx", "nginx", "-e", "stderr", "-c", str(path))

    def wait_for(self, label: str, patience: float = 120.0) -> None:
        """Until the SuperLink is healthy."""
        until = time.monotonic() + patience
        trust = f"ssl.create_default_context(cafile='{self.keys}/ca.crt')"
        look = f"import ssl,urllib.request as u; u.urlopen('https://{SERVER}:8000/health', context={trust})"
        probe = self.command(SERVER, sys.executable, "-c", look)
        while subprocess.run(probe, capture_output=True, check=False).returncode:
            if time.monotonic() > until or self.processes[label].poll() is not None:
                raise AssertionError(f"{label} did not start:\n{self.log(label)}")
            time.sleep(0.3)

    def start_device(self, name: str, *options: str) -> None:
        node = f'client="{name}" data="{self.folder}/data/{name}.npz" state="{self.folder}/{name}/state"'
        self.start(
            name, name, "sh", "-c", KEEP_UP, "sh", str(BIN / "flower-supernode"),
            "--superlink", f"{SERVER}:8443", "--root-certificates", str(self.keys / "ca.crt"),
            "--auth-supernode-private-key", str(self.folder / name / name),
            "--node-config", " ".join([node, *options]),
        )  # fmt: skip

    def fedpers(self, *words: str, timeout: float = 900.0) -> subprocess.CompletedProcess[str]:
        """A command on the server's host."""
        return subprocess.run(
            self.command(SERVER, str(BIN / "fedpers"), *words),
            env=self.environment(SERVER), cwd=self.folder, timeout=timeout,
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    def admit(self) -> None:
        public = [str(self.folder / n / f"{n}.pub") for n in (*self.names, SPARE)]
        done = self.fedpers("keys", "admit", *public, "--ca", str(self.keys / "ca.crt"))
        assert done.returncode == 0, done.stdout + done.stderr

    def run_words(self, *overrides: str) -> list[str]:
        link = ["engine=deployment", f"engine.ca={self.keys}/ca.crt"]
        data = ["data=device", "data.input_shape=[64]", "data.num_classes=10", "data.num_clients=3"]
        return ["run", *link, *data, "engine.min_clients=3", *overrides]

    def follow(self, *words: str) -> subprocess.Popen[str]:
        """`fedpers run` in the background; what it says is in follow.log."""
        log = (self.folder / "follow.log").open("w")
        command = self.command(SERVER, str(BIN / "fedpers"), *self.run_words(*words))
        return subprocess.Popen(
            command, env=self.environment(SERVER), cwd=self.folder, stdout=log, stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip

    def pids(self, host: str, word: str) -> list[int]:
        """Processes on a host that run a command called `word`, or a module."""
        found = []
        for pid in processes_in(self.network.hosts[host]):
            with contextlib.suppress(OSError):
                first, *words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                if first != "sh" and any(w == word or w.endswith(f"/{word}") for w in words):
                    found.append(pid)
        return found

    def log(self, label: str) -> str:
        path = self.folder / f"{label}.log"
        return path.read_text(errors="replace")[-6000:] if path.is_file() else ""

    def kill(self, label: str, number: int = signal.SIGKILL) -> None:
        """End a process and all that it started in its session."""
        process = self.processes.pop(label)
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        process.wait(timeout=30)

    def close(self) -> None:
        for label in list(self.processes):
            self.kill(label)
        for namespace in (*self.network.hosts.values(), self.network.switch):
            for pid in processes_in(namespace):  # what those left behind, in namespaces that this test made
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.network.close()


def wait_until(true: Callable[[], Any], seconds: float = 240.0) -> Any:
    """What `true` gives, once that is something; far more patient than a quiet machine needs."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := true():
            return found
        time.sleep(0.2)
    raise AssertionError("it did not happen")


def inside(folder: Path, *overrides: str) -> Path:
    """The same run in process, client by client as on devices."""
    cfg = load([*DATA, "model=mlp", *overrides])
    looped = dataclasses.replace(cfg.engine, runner="loop")
    run_inside(dataclasses.replace(cfg, engine=looped), folder)
    return folder


def assert_equal(a: Path, b: Path) -> None:
    """Two runs ended with the same bits, of the state and of every client's metrics."""
    for x, y in zip(leaves(checkpoint.load(a, None)[1]), leaves(checkpoint.load(b, None)[1]), strict=True):
        assert torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
    assert clients_of(a) == clients_of(b)


def summary(out: Path) -> dict[str, object]:
    return dict(json.loads((out / "summary.json").read_text()))
