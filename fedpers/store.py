"""Where clients' memories live between rounds: in this process, or in one file a client."""

import os
import re
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from torch import Tensor

from fedpers import __version__
from fedpers.errors import CheckpointError
from fedpers.record import flatten, rebuild
from fedpers.wire import pack, unpack

When = tuple[int, int]                     # (round, exchange)
SKELETON, FORMAT = "skeleton", "format"
VERSION = "2"                              # of the files; 1 named records by their module
MEMORIES = "memories.safetensors"          # in the folder of a checkpoint


def write_record(path: Path, body: Any, durable: bool = True) -> None:
    """Write one record as a safetensors file, atomically; `durable`: it survives a loss of power.

    Raises:
        CheckpointError: the file system refuses; whatever was there before is still there.
    """
    skeleton, arrays = pack(body)
    named = {str(i): a for i, a in enumerate(arrays)}
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(named, part, metadata={SKELETON: skeleton, FORMAT: VERSION})
        if durable:
            with part.open("rb+") as file:
                os.fsync(file.fileno())
        part.replace(path)
    except (OSError, SafetensorError) as error:
        part.unlink(missing_ok=True)
        raise CheckpointError(f"cannot write {path}: {error}; free space or choose another out=") from error


def read_record(path: Path, device: str = "cpu") -> Any:
    """Read what `write_record` wrote.

    Raises:
        CheckpointError: the file is missing, damaged, or of another format.
    """
    from safetensors import safe_open

    try:
        arrays = load_file(path)
        with safe_open(path, framework="np") as file:
            about = file.metadata() or {}
            skeleton = about[SKELETON]
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path} is missing, truncated or not a fedpers file: {error}") from error
    if (version := about.get(FORMAT, "1")) != VERSION:
        raise CheckpointError(f"{path} is of format {version}, this fedpers ({__version__}) reads format "
                              f"{VERSION}: start the run anew, or go on with the version in summary.json")
    return unpack(skeleton, [arrays[str(i)] for i in range(len(arrays))], device)


def flush_files() -> None:
    """Have everything on disk that any process wrote, where the operating system can."""
    getattr(os, "sync", lambda: None)()


class MemoryStore:
    """Memories in this process, and nowhere else."""

    def __init__(self) -> None:
        self.memories: dict[int, Any] = {}

    def get(self, k: int, when: When) -> Any:
        """The latest memory of client k, or None."""
        return self.memories.get(k)

    def put(self, k: int, when: When, memory: Any) -> None:
        """Replace the memory of client k."""
        self.memories[k] = memory


def own_leaves(memory: Any) -> Any:
    """The memory, with rows of larger tensors copied, so that those can go."""
    flat, structure = flatten(memory)
    return rebuild(structure, [_own(x) for x in flat])


def _own(leaf: Any) -> Any:
    if isinstance(leaf, Tensor) and leaf.untyped_storage().nbytes() > leaf.nbytes:
        return leaf.clone()
    return leaf


class FileStore:
    """One file a client and exchange: durable on a device whose process starts anew per message.

    Versions are kept from the last one that a checkpoint of the server may go back to, so a server
    that resumes at round t finds what the client remembered then. Not `durable`: each file is whole
    or absent even if the process is killed, but only `flush_files` makes sure that it is on disk.
    """

    def __init__(self, folder: Path, keep_rounds: int, device: str = "cpu", durable: bool = True) -> None:
        self.folder, self.keep_rounds, self.device = folder, keep_rounds, device
        self.durable = durable

    def get(self, k: int, when: When) -> Any:
        """The newest memory of client k from before exchange `when`, or None."""
        before = [w for w in self._versions(k) if w < when]
        return read_record(self._path(k, max(before)), self.device) if before else None

    def put(self, k: int, when: When, memory: Any) -> None:
        """Write a new version; drop those from a future that never was, and those no longer needed."""
        versions = self._versions(k)
        write_record(self._path(k, when), memory, self.durable)
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
