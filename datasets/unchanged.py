"""Whether the files of a run's own data are those that the run began with."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from fedpers.core.errors import DataError
from fedpers.datasets import local_files, pictures
from fedpers.datasets.config import DataConfig
from fedpers.datasets.image_folders import DEEPEST, shown

READ = (*local_files.KINDS, *pictures.KINDS)  # other files in a folder are no data


def note(cfg: DataConfig, record: Path) -> None:
    """Write the checksum of the files in data.path to `record`; without data.path, nothing."""
    if cfg.path:
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(checksum(Path(cfg.path).expanduser()) + "\n", encoding="utf-8")


def check(cfg: DataConfig, record: Path) -> None:
    """Compare the files in data.path with the checksum in `record`, if there is one.

    Raises:
        DataError: they are others.
    """
    if not cfg.path or not record.is_file():
        return
    here, there = checksum(Path(cfg.path).expanduser()), record.read_text(encoding="utf-8").strip()
    if here != there:
        raise DataError(
            f"data.path={cfg.path}: has changed since the run began (sha256 {here[:12]} here, {there[:12]} "
            "then), and the run's numbers belong to what it was; put the files back as they were, or make a "
            "new run with another out="
        )


def checksum(path: Path) -> str:
    """sha256 over the contents of a file; of a folder over names and contents of tables and images in it."""
    found = hashlib.sha256()
    for file in [path] if path.is_file() else _below(path, 0):
        name = "" if file == path else file.relative_to(path).as_posix()
        with file.open("rb") as content:
            found.update(f"{name}\0{hashlib.file_digest(content, hashlib.sha256).hexdigest()}\n".encode())
    return found.hexdigest()


def _below(folder: Path, depth: int) -> Iterator[Path]:
    for entry in shown(folder):
        if entry.is_dir():
            if depth <= DEEPEST:  # links may lead in circles
                yield from _below(entry, depth + 1)
        elif entry.suffix.lower() in READ:
            yield entry
