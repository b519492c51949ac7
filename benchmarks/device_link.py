"""A SuperLink and SuperNodes on this machine's loopback, without TLS, and what their processes cost."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedpers.config.compose import load
from fedpers.deploy.deal import deal
from fedpers.deploy.submit import QUIET

BIN, TICK = Path(sys.executable).parent, os.sysconf("SC_CLK_TCK")
RESIDENT, NODE, SUPERLINK, SERVER_APP = (
    "fedpers.deploy.resident",
    "flower-supernode",
    "superlink",
    "flwr-serverapp",
)
DIGITS = ("data.input_shape=[64]", "data.num_classes=10")
SUPEREXEC, FOLLOWER = "flower-superexec", "engine=deployment"  # an argument of `fedpers run`


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Local:
    """A SuperLink and `count` devices with handwritten digits, in a folder of their own."""

    def __init__(
        self,
        folder: Path,
        count: int,
        source: str = "",
        files: Sequence[Path] = (),
        target: str = "",
        nodes: bool = True,
    ) -> None:
        """`source` is a "module:function" of the device's owner; else each device reads its file.

        `files` are the devices' own, with `target` as the column of y; left out: digits, dealt here.
        Without `nodes` there is the SuperLink alone.
        """
        self.folder, self.count, self.port = folder, count, free_port()
        self.processes: list[subprocess.Popen[bytes]] = []
        dealt = ["data=digits", f"data.num_clients={count}", "data.partition=dirichlet", "data.alpha=1.0"]
        files = files or deal(load(dealt).data, 3, folder / "data")
        link = [
            "--insecure",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--database",
            str(folder / "link.db"),
        ]
        self._start(
            "superlink", str(BIN / "fedpers"), SUPERLINK, *link, "--disable-runtime-dependency-installation"
        )
        self._wait()
        target = f' target="{target}"' if target else ""
        if not nodes:
            return
        for k, file in enumerate(files):
            node = f'client="site-{k}" data="{source or file}" state="{folder}/state-{k}"' + target
            words = ["--insecure", "--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port())]
            words += ["--node-config", node]
            self._start(f"site-{k}", str(BIN / NODE), *words, FEDPERS_SITE=str(file))

    def _start(self, label: str, *words: str, **more: str) -> None:
        home = {"FLWR_HOME": str(self.folder / label / "flwr"), "PATH": f"{BIN}:{os.environ['PATH']}"}
        paths = {"PYTHONPATH": str(Path(__file__).parent)}
        log = (self.folder / f"{label}.log").open("wb")
        self.processes.append(
            subprocess.Popen(
                words,
                env=os.environ | QUIET | home | paths | more,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        )

    def _wait(self) -> None:
        until = time.monotonic() + 120
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            if time.monotonic() > until or self.processes[0].poll() is not None:
                raise RuntimeError(f"the SuperLink did not start; see {self.folder}/superlink.log")
            time.sleep(0.2)

    def run(self, out: Path, *words: str, shape: Sequence[str] = DIGITS) -> "subprocess.Popen[bytes]":
        """`fedpers run` on these devices."""
        fixed = ["engine=deployment", f"engine.address=127.0.0.1:{self.port}", "data=device", "seed=3"]
        count = [f"data.num_clients={self.count}", f"engine.min_clients={self.count}"]
        command = [sys.executable, "-m", "fedpers", "run", *fixed, *shape, *count]
        return subprocess.Popen([*command, *words, f"out={out}"], env=os.environ | QUIET)

    def pids(self, word: str) -> list[int]:
        """Processes of this link that run a command or module called `word`."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_text().split("\0")
                inside = str(self.folder) in (path.parent / "environ").read_text() + " ".join(words)
            except (OSError, UnicodeDecodeError):
                continue
            if inside and any(w == word or w.endswith(f"/{word}") for w in words):
                found.append(int(path.parent.name))
        return found

    def close(self) -> None:
        """End every process of this link."""
        for process in self.processes:
            process.kill()
        for word in (RESIDENT, NODE, SUPERLINK, SERVER_APP, SUPEREXEC, "flwr-clientapp"):
            for pid in self.pids(word):
                os.kill(pid, 9)


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU that processes have used, and their children that have ended."""
    total = 0.0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += sum(map(int, fields[11:15])) / TICK
    return total


def megabytes(pids: Iterable[int]) -> float:
    """Memory that is processes' own, which no other process shares and no file holds."""
    total = 0
    for pid in pids:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))
    return total / 1024
