"""A client's state on its own device: one file per version, and no order is applied twice.

STATE/<client>/<run>/<round>-<exchange>.safetensors. The folders are the owner's alone (mode 0700), a
file is whole or absent. The run's id is drawn at random when the run begins, so no run finds another's
states. Each order says which version the server took last from this client (`since`) and which one its
newest checkpoint may go back to (`keep`); the client loads exactly `since`. A reply that was lost leaves
a version behind that no order asks for: the next order finds the one before.
"""

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedpers.core.errors import CheckpointError, FedpersError
from fedpers.core.serialization import read_record, write_record
from fedpers.engines.memory.client_store import ClientStore

log = logging.getLogger("fedpers")

Version = tuple[int, int]  # (round, exchange)
RUN = re.compile(r"[0-9a-f]{32}")
FILE = re.compile(r"(\d+)-(\d+)\.safetensors")


class StateLost(FedpersError):
    """The server took a version from this client that is not on the device any more."""


@dataclass(frozen=True)
class Recall:
    """Which versions of its state an order asks a client to have."""

    since: Version | None  # the last that the server took; None: none yet
    keep: Version | None  # what the server's newest checkpoint may go back to


class PrivateState(ClientStore):
    """The states of one client in one run; a `ClientStore` once `recall` is set."""

    def __init__(
        self,
        folder: Path,
        client: str,
        run: str,
        device: str = "cpu",
        lost: Literal["refuse", "reinitialise"] = "refuse",
    ) -> None:
        if not RUN.fullmatch(run):
            raise FedpersError(f"run id '{run}': expected 32 hexadecimal digits")
        self.folder, self.client, self.device, self.lost = folder / client / run, client, device, lost
        self.recall = Recall(None, None)
        self.reinitialised = False  # whether the last `get` found nothing and was allowed to
        for part in (folder, folder / client, self.folder):
            _make_private(part)

    def get(self, k: int, when: Version) -> Any:
        """The state that the server believes this client to have; None before the first.

        Raises:
            StateLost: it is missing or damaged, and the device's `lost_state` does not allow a new one.
        """
        self.reinitialised = False
        since = self.recall.since
        if since is None:
            return None
        try:
            return read_record(self._path(since), self.device)
        except FedpersError as error:
            if self.lost == "refuse":
                raise StateLost(self._complaint(since)) from error
            log.warning("%s; starting with a new state", self._complaint(since))
            self.reinitialised = True
            return None

    def put(self, k: int, when: Version, state: Any) -> None:
        """Write the version that this exchange leaves, then drop those that nobody can ask for.

        Raises:
            CheckpointError: the file system refuses; all earlier versions are as they were.
        """
        write_record(self._path(when), state)
        self._path(when).chmod(0o600)
        for version in self.versions():
            if version not in (when, self.recall.since, self.recall.keep):
                self._path(version).unlink(missing_ok=True)

    def versions(self) -> list[Version]:
        """The versions on disk, oldest first."""
        found = (FILE.fullmatch(p.name) for p in self.folder.iterdir())
        return sorted((int(m[1]), int(m[2])) for m in found if m)

    def _path(self, version: Version) -> Path:
        return self.folder / f"{version[0]}-{version[1]}.safetensors"

    def _complaint(self, since: Version) -> str:
        return (
            f"client {self.client} has lost its state of round {since[0]}, exchange {since[1]} "
            f"(run {self.folder.name}): restore it, or start this device with "
            f'lost_state="reinitialise" in its node-config'
        )


def _make_private(folder: Path) -> None:
    """Make a folder that only its owner may look into.

    Raises:
        CheckpointError: it cannot be made, or others may look into it and that cannot be changed.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        raise CheckpointError(f"{folder}: no private folder can be made there: {error.strerror}") from error
