"""The ClientApp on a device: thin, for Flower starts it anew for each message.

It imports no torch. Messages are answered by `fedpers.deploy.resident`, a process that stays; this one
waits for it no longer than the order allows, and ends it if it takes longer.
"""

import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedpers import __version__
from fedpers.deploy import frames
from fedpers.deploy.bundles import bundled, parts

ARRAYS, CONFIG = "arrays", "config"  # as in fedpers.flower.messages, which imports torch
FAILED = 2  # Flower's code of a client app that raised
app = ClientApp()


class Silent(Exception):
    """The resident process did not answer; the message says why, for the server."""


@app.query()
@app.train()
@app.evaluate()
def _handle(message: Message, context: Context) -> Message:
    header: dict[str, Any] = dict(message.content[CONFIG])  # type: ignore[arg-type]
    limit = float(header.get("limit_s", 600.0))
    state = Path(str(context.node_config.get("state") or default_state()))
    node = {**context.node_config, "state": str(state)}
    request = {"header": header, "node": node, "config": context.run_config.get("config", "")}
    order: Any = message.content[ARRAYS]
    try:
        # popped, so that what was handed over can be freed
        arrays = [part for name in list(order) for part in parts(order.pop(name))]
        found, packed = ask(state, request, arrays, limit)
    except (Silent, ValueError) as why:
        return Message(Error(FAILED, str(why)), reply_to=message)
    if "error" in found:
        return Message(Error(FAILED, str(found["error"])), reply_to=message)
    record = ArrayRecord({str(i): _array(a) for i, a in enumerate(packed)})
    return Message(bundled(RecordDict({ARRAYS: record, CONFIG: ConfigRecord(found)})), reply_to=message)


def default_state() -> Path:
    """The folder of a device's states where its node-config names none."""
    return Path(os.environ.get("FEDPERS_STATE") or Path.home() / ".local" / "state" / "fedpers")


def ask(
    state: Path, request: dict[str, Any], arrays: list[bytes], limit: float
) -> tuple[dict[str, Any], list[bytes]]:
    """The resident process's answer; the process is started if there is none. `arrays` is emptied.

    Raises:
        Silent: none came within `limit` seconds, and the process was ended; or it ended by itself.
    """
    until = time.monotonic() + limit
    with _connect(state, until) as (peer, pid):
        _limit(peer, until)
        try:
            frames.send(peer, request, arrays)
            _limit(peer, until)
            return frames.receive(peer, frames.read_bytes)
        except BlockingIOError:  # nothing came, or it does not even take the order
            os.kill(pid, signal.SIGKILL)
            raise Silent(f"no answer within {limit:.0f} s; its process was ended") from None
        except (EOFError, ConnectionError):
            raise Silent(
                "its process ended while it worked (out of memory?); see the SuperNode's log"
            ) from None


def _limit(peer: socket.socket, until: float) -> None:
    """Set the socket's timeout so that no read or write waits past `until` (seconds, monotonic)."""
    left = max(until - time.monotonic(), 0.001)
    value = struct.pack("ll", int(left), int(left % 1 * 1e6))
    for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        peer.setsockopt(socket.SOL_SOCKET, option, value)


class _connect:
    """A connection to the resident process, as (socket, its process id)."""

    def __init__(self, state: Path, until: float) -> None:
        self.state, self.until = state, until
        self.path = state / f"resident-{__version__}.sock"

    def __enter__(self) -> tuple[socket.socket, int]:
        self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.state / "resident.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one of several messages starts it
            self.peer = self._try() or self._start()
        credentials = self.peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return self.peer, struct.unpack("3i", credentials)[0]

    def __exit__(self, *error: object) -> None:
        self.peer.close()

    def _try(self) -> socket.socket | None:
        peer = socket.socket(socket.AF_UNIX)
        try:
            peer.connect(str(self.path))
        except OSError:
            peer.close()
            return None
        return peer

    def _start(self) -> socket.socket:
        command = [sys.executable, "-P", "-m", "fedpers.deploy.resident", str(self.path)]
        process = subprocess.Popen(command, start_new_session=True, cwd=self.state)
        while time.monotonic() < self.until and process.poll() is None:
            if (peer := self._try()) is not None:
                return peer
            time.sleep(0.02)
        if process.poll() is None:
            process.kill()
            raise Silent("its process did not start in time")
        raise Silent(f"its process ended at once (status {process.returncode}); see the SuperNode's log")


def _array(packed: bytes) -> Array:
    """A packed array as Flower's; dtype and shape are read from the packed form itself."""
    shape, _, dtype, _ = frames.described(packed[: 2**16])
    return Array(str(dtype), tuple(shape), "numpy.ndarray", packed)
