"""Checksums of a user's files, by which a run knows that they are those that it began with."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from fedpers.datasets import local_files, pictures
from fedpers.datasets.image_folders import DEEPEST, shown

READ = (*local_files.KINDS, *pictures.KINDS)  # of data=files: other files in a folder are no data


def checksum(path: Path, kinds: tuple[str, ...] = READ) -> str:
    """sha256 over the contents of a file; of a folder over names and contents of the files in it.

    Args:
        kinds: the endings of a folder's files that count; (): all files.
    """
    found = hashlib.sha256()
    for file in [path] if path.is_file() else _below(path, kinds, 0):
        name = "" if file == path else file.relative_to(path).as_posix()
        with file.open("rb") as content:
            found.update(f"{name}\0{hashlib.file_digest(content, hashlib.sha256).hexdigest()}\n".encode())
    return found.hexdigest()


def _below(folder: Path, kinds: tuple[str, ...], depth: int) -> Iterator[Path]:
    for entry in shown(folder):
        if entry.is_dir():
            if depth <= DEEPEST:  # links may lead in circles
                yield from _below(entry, kinds, depth + 1)
        elif not kinds or entry.suffix.lower() in kinds:
            yield entry
