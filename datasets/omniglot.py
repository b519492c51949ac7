"""Omniglot: 1,623 characters of 50 alphabets, each drawn by 20 people; both official subsets.

Read from the two zip files in place, or from the folders that torchvision unpacks them to. Ink is
1, paper 0, and the 105x105 drawings are reduced to 28x28.
"""

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np
import torch
import torch.nn.functional as F
from numpy.random import Generator

from fedpers.datasets.cache import Arrays, cached
from fedpers.datasets.config import DataConfig
from fedpers.datasets.raw import Raw, damaged, missing

SUBSETS = ("images_background", "images_evaluation")
SIZE = 28
TRAIN_SHARE = 0.75  # of each character, as in PFLEGO's experiments


def sources(root: Path) -> list[Path]:
    """For each subset its zip file, else its unpacked folder."""
    base = root / "omniglot-py"
    found = []
    for subset in SUBSETS:
        archive, folder = base / f"{subset}.zip", base / subset
        if not archive.is_file() and not folder.is_dir():
            raise missing("omniglot", root, archive)
        found.append(archive if archive.is_file() else folder)
    return found


def drawings(source: Path) -> Iterator[tuple[str, bytes]]:
    """(alphabet/characterNN/<id>_<drawer>.png, content) in sorted order."""
    if source.is_dir():
        for path in sorted(source.rglob("*.png")):
            yield path.relative_to(source).as_posix(), path.read_bytes()
        return
    try:
        with zipfile.ZipFile(source) as archive:
            for name in sorted(n for n in archive.namelist() if n.endswith(".png")):
                yield name.partition("/")[2], archive.read(name)
    except zipfile.BadZipFile as error:
        size, root = source.stat().st_size, source.parents[1]  # <root>/omniglot-py/<source>
        raise damaged(source, "a whole zip file", f"{error} in {size} bytes", "omniglot", root) from error


def decode(paths: list[Path]) -> Arrays:
    """x [n, 1, 28, 28] bytes, character, alphabet and drawer of each drawing."""
    images, characters, alphabets, drawers = [], [], [], []
    for path in paths:
        for name, content in drawings(path):
            where = PurePosixPath(name)
            images.append(_reduced(content))
            characters.append(str(where.parent))
            alphabets.append(where.parts[0])
            drawers.append(int(where.stem.partition("_")[2]) - 1)
    return {
        "x": np.stack(images)[:, None],
        "y": np.unique(characters, return_inverse=True)[1].astype(np.int64),
        "alphabet": np.unique(alphabets, return_inverse=True)[1].astype(np.int64),
        "drawer": np.array(drawers, dtype=np.int64),
    }


def _reduced(content: bytes) -> np.ndarray:
    from PIL import Image

    with Image.open(io.BytesIO(content)) as image:
        return reduced(np.asarray(image.convert("L")))


def reduced(drawing: np.ndarray) -> np.ndarray:
    """[28, 28] bytes, ink high, of a drawing [n, n] on white paper.

    Bilinear between the nearest pixels, without antialiasing, as in the script of PFLEGO's authors: each
    result is of four pixels, so thin strokes may break.
    """
    ink = 255 - torch.tensor(drawing, dtype=torch.float32)
    small = F.interpolate(ink[None, None], size=(SIZE, SIZE), mode="bilinear", align_corners=False)
    return small[0, 0].round().to(torch.uint8).numpy()


def load(cfg: DataConfig, rng: Generator) -> Raw:
    """75 % of each character for training, the rest for testing; with the rotated copies.

    Under omniglot_split=after_rotation the copies of one drawing may fall on both sides, as in
    PFLEGO's experiments; before_rotation keeps them together.
    """
    root = cfg.folder()
    paths = sources(root)
    arrays = cached("omniglot_plain", root, paths, lambda: decode(paths))
    copies = 4 if cfg.rotate else 1
    together = cfg.omniglot_split == "before_rotation"
    x = np.concatenate([np.rot90(arrays["x"], turn, axes=(2, 3)) for turn in range(copies)])
    y, owner = (np.tile(arrays[key], copies) for key in ("y", cfg.omniglot_clients))
    drawing = np.tile(np.arange(len(arrays["y"])), copies)
    if together:
        mask = np.tile(training_mask(arrays["y"], rng), copies)
    else:
        mask = training_mask(np.tile(arrays["y"], copies), rng)
    notes = (
        ()
        if together or copies == 1
        else ("rotated copies of one drawing are on both sides of the split (omniglot_split)",)
    )
    return Raw(
        "omniglot",
        x[mask],
        y[mask],
        x[~mask],
        y[~mask],
        int(y.max()) + 1,
        owner=owner[mask],
        test_owner=owner[~mask],
        notes=notes,
        same=np.concatenate([drawing[mask], drawing[~mask]]) if together else None,
    )


def training_mask(labels: np.ndarray, rng: Generator) -> np.ndarray:
    """True for a random TRAIN_SHARE of the samples of each class."""
    mask = np.zeros(len(labels), dtype=bool)
    for c in np.unique(labels):
        mine = rng.permutation(np.flatnonzero(labels == c))
        mask[mine[: round(TRAIN_SHARE * len(mine))]] = True
    return mask
