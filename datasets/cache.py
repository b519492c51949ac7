"""Decoded sets on disk: decode once, then map the arrays into memory.

A cache entry is a folder of .npy files whose name carries a fingerprint of the source files. It is
written beside its place and renamed, so it is there as a whole or not at all.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from fedpers.core.errors import DataError

Arrays = dict[str, np.ndarray]
VERSION = 1  # raise it when decoding changes


def cache_root(root: Path) -> Path:
    """$FEDPERS_CACHE, else <root>/.fedpers-cache if it can be written, else ~/.cache/fedpers."""
    named = os.environ.get("FEDPERS_CACHE")
    if named:
        return Path(named).expanduser()
    beside = root / ".fedpers-cache"
    writable = os.access(beside if beside.exists() else root, os.W_OK)
    return beside if writable else Path.home() / ".cache" / "fedpers" / "decoded"


def fingerprint(sources: Sequence[Path]) -> str:
    """Changes when a source file is replaced (path, size, time of change)."""
    text = [f"v{VERSION}"]
    for path in sources:
        stat = path.stat()
        text.append(f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}")
    return hashlib.sha256("\n".join(text).encode()).hexdigest()[:16]


def cached(name: str, root: Path, sources: Sequence[Path], decode: Callable[[], Arrays]) -> Arrays:
    """The arrays of `decode()`, memory-mapped; decoded again if the entry is absent or damaged.

    Raises:
        DataError: the cache cannot be written.
    """
    folder = cache_root(root) / f"{name}-{fingerprint(sources)}"
    arrays = _read(folder)
    if arrays is None:
        _write(folder, decode())
        arrays = _read(folder)
    if arrays is None:
        raise DataError(f"the decoded data in {folder} cannot be read; delete that folder")
    return arrays


def _read(folder: Path) -> Arrays | None:
    """The arrays of an entry; None if it is absent or a file of it is damaged."""
    index = folder / "index"
    if not index.is_file():
        return None
    arrays = {}
    for line in index.read_text().splitlines():
        name, size = line.split()
        path = folder / f"{name}.npy"
        if not path.is_file() or path.stat().st_size != int(size):
            return None
        try:
            arrays[name] = np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError:  # not an array file, or cut short
            return None
    return arrays


def _write(folder: Path, arrays: Arrays) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", suffix=".part", dir=folder.parent))
    except OSError as error:
        raise _cannot_write(folder, error) from error
    try:
        for name, array in arrays.items():
            np.save(part / f"{name}.npy", array, allow_pickle=False)
        sizes = [f"{name} {(part / f'{name}.npy').stat().st_size}" for name in arrays]
        (part / "index").write_text("\n".join(sizes))
        part.chmod(0o755)
        _put(part, folder)
    except OSError as error:
        raise _cannot_write(folder, error) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _put(part: Path, folder: Path) -> None:
    """Rename `part` to `folder`; a damaged entry makes way, a whole one by somebody else stays."""
    if folder.exists() and _read(folder) is None:
        old = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", suffix=".old", dir=folder.parent))
        folder.replace(old)
        shutil.rmtree(old, ignore_errors=True)
    try:
        part.rename(folder)
    except OSError:
        if _read(folder) is None:  # not there after all: a real failure
            raise


def _cannot_write(folder: Path, error: OSError) -> DataError:
    return DataError(
        f"decoded data cannot be kept in {folder.parent}: {error.strerror or error}; "
        "set FEDPERS_CACHE to a folder with room that can be written"
    )
