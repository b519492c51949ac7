"""What a report may overwrite: only what an earlier report wrote."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from fedpers.core.errors import FedpersError
from fedpers.results import files

MARK = "written by fedpers report"  # among a file's first characters; in a folder: the file OURS
OURS = ".fedpers-report"


def claim(texts: Iterable[Path], folder: Path) -> None:
    """Make sure that files and a folder of ours are free or ours; nothing is touched otherwise.

    Raises:
        FedpersError: one of them is somebody else's.
    """
    for path in texts:
        if path.exists() and not _ours(path):
            raise FedpersError(f"{path} was not {MARK}; move it away, or choose another folder with --out")
    strange = folder.exists() and not (folder / OURS).is_file()
    if strange and (not folder.is_dir() or any(folder.iterdir())):
        raise FedpersError(f"{folder} was not {MARK}; move it away, or choose another folder with --out")
    folder.mkdir(parents=True, exist_ok=True)
    files.replace_text(folder / OURS, f"{MARK}\n")


def write(texts: Mapping[Path, str]) -> None:
    """Write each file beside, then rename."""
    for path, text in texts.items():
        files.replace_text(path, text)


def _ours(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return MARK.encode() in file.read(200)
