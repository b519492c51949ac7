"""Images in folders: the last folder is the class; those above it name the client and the split."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedpers.core.arrays import WHOLE, Part, split_of
from fedpers.core.errors import DataError
from fedpers.datasets.pictures import KINDS, Look, colour_of, read

CLUTTER = ("Thumbs.db", "desktop.ini", "__MACOSX")  # what file managers leave; and what begins with a point
DEEPEST = 3  # folders below the path: CLIENT/train/CLASS


class Found(NamedTuple):
    """What lies in the folders below a path."""

    images: list[Path]  # in order
    others: list[Path]  # files that are no images of KINDS


def find(path: Path) -> Found:
    """All files in the folders below `path`; hidden ones and folders are passed over.

    Raises:
        DataError: images lie too deep.
    """
    found = Found([], [])
    for file in _files(path, 0):
        image = file.suffix.lower() in KINDS
        above = len(file.relative_to(path).parts) - 1
        if image and above > DEEPEST:
            raise DataError(f"{file}: lies too deep; expected CLIENT/CLASS/image or CLIENT/train/CLASS/image")
        found[0 if image and above else 1].append(file)
    return found


def _files(folder: Path, depth: int) -> Iterator[Path]:
    for entry in shown(folder):
        if not entry.is_dir():
            yield entry
        elif depth <= DEEPEST:  # links may lead in circles
            yield from _files(entry, depth + 1)


def shown(folder: Path) -> list[Path]:
    """What is in a folder, in order, without what is hidden and what file managers leave."""
    return sorted(p for p in folder.iterdir() if not p.name.startswith(".") and p.name not in CLUTTER)


def read_images(path: Path, images: list[Path], look: Look) -> Mapping[str, Mapping[str, Part]]:
    """The samples of each client below `path` by split, or of one without a name; y is the folder's name.

    Args:
        images: those that `find` found.
        look: what they are brought to; without a colour grey if all are, else RGB.

    Returns:
        {client: {split: Part}} with x [n, C, H, W], bytes or, where an image has 16 bits, uint16.

    Raises:
        DataError: a file is no image, sizes differ, or folders are not alike.
    """
    groups: dict[str, dict[str, list[Path]]] = defaultdict(lambda: defaultdict(list))
    depths: dict[int, Path] = {}
    for file in images:
        above = file.relative_to(path).parts[:-2]
        depths.setdefault(len(above), file)
        owners = [name for name in above if split_of(name) is None]
        if len(owners) > 1 or len(above) > 2:
            raise DataError(f"{file}: lies too deep; expected CLIENT/CLASS/image or CLIENT/train/CLASS/image")
        split = next(filter(None, map(split_of, above)), WHOLE)
        groups[owners[0] if owners else ""][split].append(file)
    if len(depths) > 1:
        one, other, *_ = depths.values()
        raise DataError(f"{one} and {other} lie at different depths; give all images CLIENT/CLASS/ or CLASS/")
    look = look._replace(colour=look.colour or colour_of(images))
    return {name: {s: _part(f, look) for s, f in splits.items()} for name, splits in groups.items()}


def _part(files: list[Path], look: Look) -> Part:
    return Part(read(files, look), np.array([file.parent.name for file in files]))


def left_out(path: Path, others: list[Path]) -> tuple[str, ...]:
    """A note that names what was not read, if there is anything."""
    if not others:
        return ()
    names = ", ".join(str(p.relative_to(path)) for p in others[:5])
    more = f" and {len(others) - 5} more" if len(others) > 5 else ""
    return (f"files that were not read, because their kind is unknown: {names}{more}",)
