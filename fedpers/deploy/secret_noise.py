"""The noise on what a device sends: from a key of its own, so nobody else can work it out.

The run's seed is known to the server, so noise that followed from it would hide nothing. The noise of an
exchange is drawn from (key, round, exchange, the change that it hides): an order that comes twice gets the
same reply again, which tells nothing new. Another answer to the same exchange, which would, is refused.
"""

import hmac
import os
import secrets
from pathlib import Path
from typing import Any

from fedpers.core.errors import CheckpointError, FedpersError
from fedpers.core.rng import Stream, noise_stream
from fedpers.core.serialization import digest, pack
from fedpers.flower.messages import Request

KEY, RELEASED = "noise.key", "released.txt"


class SecretNoise:
    """The noise of one client in one run; `folder` is that of its private states."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, request: Request, change: Any) -> Stream:
        """The random numbers that hide `change`.

        Raises:
            FedpersError: this exchange was answered with another change before.
            CheckpointError: the file system refuses.
        """
        t, e = request.when
        told = digest(*pack(change))
        try:
            self._note(f"{t}-{e}", told)
            drawn = hmac.digest(self._key(), f"{t}-{e}-{told}".encode(), "sha256")
        except OSError as error:
            raise CheckpointError(f"cannot write {self.folder}: {error.strerror}; make room there") from error
        return noise_stream(int.from_bytes(drawn, "big"), t, request.k, e)

    def _note(self, when: str, told: str) -> None:
        """Remember what an exchange was answered with, before the answer leaves."""
        path = self.folder / RELEASED
        known = dict(line.split() for line in path.read_text().splitlines()) if path.exists() else {}
        if known.get(when, told) != told:
            raise FedpersError(
                f"privacy=dp: exchange {when} (round-exchange) was answered before, with another change; "
                "a second answer would tell more than is counted"
            )
        if when not in known:
            with _opened(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as file:
                file.write(f"{when} {told}\n".encode())
                file.flush()
                os.fsync(file.fileno())

    def _key(self) -> bytes:
        path = self.folder / KEY
        if not path.exists():
            part = path.with_suffix(".part")
            with _opened(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
                file.write(secrets.token_bytes(32))
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        return path.read_bytes()


def _opened(path: Path, flags: int) -> Any:
    return os.fdopen(os.open(path, flags, 0o600), "ab" if flags & os.O_APPEND else "wb")
