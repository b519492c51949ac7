"""Stores of clients' states between rounds: in this process, or in one file per client."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from fedpers.core.serialization import read_record, write_record

When = tuple[int, int]  # (round, exchange)
CLIENTS = "clients.safetensors"  # in the folder of a checkpoint


class ClientStore(Protocol):
    """Base of the stores of clients' states."""

    keeps_stacks: bool = False  # `put_alike` takes rows of stacks, which live as long as any of them

    def get(self, k: int, when: When) -> Any:
        """The state of client k before exchange `when` = (round, exchange); None if never seen."""

    def get_all(self, wanted: Sequence[tuple[int, When]]) -> list[Any]:
        """`get` of several clients."""
        return [self.get(k, when) for k, when in wanted]

    def put(self, k: int, when: When, state: Any) -> None:
        """Keep the state that client k has after exchange `when`; its tensors are its own."""

    def put_alike(self, clients: Sequence[int], when: When, states: Sequence[Any]) -> None:
        """`put` for clients whose states have one structure, shapes and plain values."""
        for k, state in zip(clients, states, strict=True):
            self.put(k, when, state)


class RamStore(ClientStore):
    """States in this process's RAM, lost when it ends."""

    def __init__(self) -> None:
        self.states: dict[int, Any] = {}

    def get(self, k: int, when: When) -> Any:
        """The latest state of client k, or None."""
        return self.states.get(k)

    def put(self, k: int, when: When, state: Any) -> None:
        """Replace the state of client k."""
        self.states[k] = state


class FileStore(ClientStore):
    """One file a client and exchange: durable on a device whose process starts anew per message.

    Versions are kept from the last one that a checkpoint of the server may go back to, so a server
    that resumes at round t finds the client's state of then. Not `durable`: each file is whole
    or absent even if the process is killed, but only `flush_files` makes sure that it is on disk.
    """

    def __init__(self, folder: Path, keep_rounds: int, device: str = "cpu", durable: bool = True) -> None:
        self.folder, self.keep_rounds, self.device = folder, keep_rounds, device
        self.durable = durable

    def get(self, k: int, when: When) -> Any:
        """The newest state of client k from before exchange `when`, or None."""
        before = [w for w in self._versions(k) if w < when]
        return read_record(self._path(k, max(before)), self.device) if before else None

    def put(self, k: int, when: When, state: Any) -> None:
        """Write a new version; drop those from a future that never was, and those no longer needed."""
        versions = self._versions(k)
        write_record(self._path(k, when), state, self.durable)
        needed = [w for w in versions if w[0] <= when[0] - self.keep_rounds]
        oldest = max(needed, default=(0, 0))
        for w in versions:
            if w > when or w < oldest:
                self._path(k, w).unlink(missing_ok=True)

    def _path(self, k: int, when: When) -> Path:
        return self.folder / str(k) / f"{when[0]}-{when[1]}.safetensors"

    def _versions(self, k: int) -> list[When]:
        names = (re.fullmatch(r"(\d+)-(\d+)\.safetensors", p.name) for p in (self.folder / str(k)).glob("*"))
        return sorted((int(m[1]), int(m[2])) for m in names if m)
