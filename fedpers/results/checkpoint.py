"""Checkpoints: the states of the strategy and of the clients, readable again or not there at all.

A checkpoint is a folder checkpoint/round-000010 that is written beside and then renamed; random
streams depend on (seed, round, client) alone, so there is nothing else to keep.
"""

import os
import re
import shutil
from pathlib import Path
from typing import Any, Protocol

from fedpers.core.errors import CheckpointError
from fedpers.core.serialization import read_record, write_record

STATE = "state.safetensors"


class ClientStates(Protocol):
    """A store of clients' states that can go back to its last checkpoint."""

    def save(self, folder: Path) -> None:
        """Write what is needed to go back into `folder`; the checkpoint before stays valid."""

    def committed(self) -> None:
        """The checkpoint that was saved last is in place."""

    def load(self, folder: Path) -> None:
        """Go back to what `save` wrote into `folder`."""


def save(
    out: Path, t: int, state: Any, *stores: ClientStates | None, exchanges: int = 0, run: str = ""
) -> None:
    """Write the checkpoint of round t, which had so many exchanges, under `out`; then remove older ones.

    `run` is the id under which clients keep their own states; "" where the states are in the stores.

    Raises:
        CheckpointError: the file system refuses; the previous checkpoint is untouched.
    """
    folder = out / "checkpoint"
    part, final = folder / f".round-{t:06d}.part", _round_folder(out, t)
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        write_record(part / STATE, {"state": state, "exchanges": exchanges, "run": run})
        for store in filter(None, stores):
            store.save(part)
        shutil.rmtree(final, ignore_errors=True)
        part.rename(final)
        _sync(folder)
        for store in filter(None, stores):
            store.committed()
    except OSError as error:
        raise CheckpointError(f"cannot write {final}: {error}; free space or choose another out=") from error
    for t_old, old in _existing(out):
        if t_old < t:
            shutil.rmtree(old, ignore_errors=True)


def load(out: Path, store: ClientStates | None, device: str = "cpu") -> tuple[int, Any]:
    """(round, state) of the newest checkpoint; fills `store` with the states.

    Raises:
        CheckpointError: there is none, it is damaged, or the states are with the clients.
    """
    t, folder = _newest(out)
    body = read_record(folder / STATE, device)
    if store is not None:
        if body.get("run"):
            text = f"flwr run . --run-config \"overrides='resume={out} ...'\", with the words of before"
            raise CheckpointError(
                f"resume={out}: its clients keep their own states; continue it with  {text}"
            )
        store.load(folder)
    return t, body["state"]


def exchanges(out: Path) -> int:
    """Exchanges of the newest checkpoint's round.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    return int(read_record(newest(out) / STATE).get("exchanges", 0))


def run_id(out: Path) -> str:
    """The id under which the clients of the newest checkpoint keep their own states.

    Raises:
        CheckpointError: there is no checkpoint, it is damaged, or its states are not with the clients.
    """
    run = str(read_record(newest(out) / STATE).get("run") or "")
    if not run:
        text = "its clients did not keep their own states; go on with it by"
        raise CheckpointError(f"resume={out}: {text}  fedpers run resume={out}")
    return run


def newest(out: Path) -> Path:
    """The folder of the newest checkpoint.

    Raises:
        CheckpointError: there is none.
    """
    return _newest(out)[1]


def _newest(out: Path) -> tuple[int, Path]:
    found = _existing(out)
    if not found:
        raise CheckpointError(f"{out} has no checkpoint; start anew with another out=")
    return found[-1]


def last_round(out: Path) -> int | None:
    """The round of the newest checkpoint, or None."""
    found = _existing(out)
    return found[-1][0] if found else None


def _round_folder(out: Path, t: int) -> Path:
    return out / "checkpoint" / f"round-{t:06d}"


def _existing(out: Path) -> list[tuple[int, Path]]:
    folders = (out / "checkpoint").glob("round-*")
    return sorted((int(m[1]), p) for p in folders if (m := re.fullmatch(r"round-(\d+)", p.name)))


def _sync(folder: Path) -> None:
    """Make a rename durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
