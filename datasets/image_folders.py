"""Images in folders: the last folder is the class; those above it name the client and the split."""

from collections import defaultdict
from pathlib import Path

import numpy as np

from fedpers.core.arrays import SPLITS, WHOLE, Part
from fedpers.core.errors import DataError
from fedpers.datasets.config import DataConfig
from fedpers.datasets.own import Owned

KINDS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")


def image_files(path: Path) -> list[Path]:
    """All images in the folders below `path`, in order."""
    return sorted(p for p in path.glob("*/**/*") if p.suffix.lower() in KINDS and p.is_file())


def read_images(path: Path, cfg: DataConfig) -> list[Owned]:
    """The clients below `path`, or one without a name; x is uint8 [n, C, H, W], y the folder's name.

    Raises:
        DataError: a file is no image, sizes differ, or folders are not alike.
    """
    groups: dict[str, dict[str, list[Path]]] = defaultdict(lambda: defaultdict(list))
    depths: dict[int, Path] = {}
    for file in image_files(path):
        above = file.relative_to(path).parts[:-2]
        depths.setdefault(len(above), file)
        owners = [name for name in above if name not in SPLITS]
        if len(owners) > 1 or len(above) > 2:
            raise DataError(f"{file}: lies too deep; expected CLIENT/CLASS/image or CLIENT/train/CLASS/image")
        split = next((name for name in above if name in SPLITS), WHOLE)
        groups[owners[0] if owners else ""][split].append(file)
    if len(depths) > 1:
        one, other, *_ = depths.values()
        raise DataError(f"{one} and {other} lie at different depths; give all images CLIENT/CLASS/ or CLASS/")
    colour = _colours([f for splits in groups.values() for files in splits.values() for f in files])
    size = _size(cfg)
    return [
        Owned(name, str(path / name), {s: _read(files, colour, size) for s, files in splits.items()})
        for name, splits in groups.items()
    ]


def _size(cfg: DataConfig) -> tuple[int, int] | None:
    if not cfg.image_size:
        return None
    height, width = (*cfg.image_size, *cfg.image_size)[:2]
    return height, width


def _colours(files: list[Path]) -> str:
    """ "L" if all images are grey, else "RGB"."""
    from PIL import Image, UnidentifiedImageError

    for file in files:
        try:
            with Image.open(file) as image:
                if image.mode not in ("1", "L", "I", "I;16", "LA"):
                    return "RGB"
        except (OSError, UnidentifiedImageError) as error:
            raise DataError(f"{file}: is no image that can be read; replace or delete it") from error
    return "L"


def _read(files: list[Path], colour: str, size: tuple[int, int] | None) -> Part:
    images = [_pixels(file, colour, size) for file in files]
    for file, image in zip(files, images, strict=True):
        if image.shape != images[0].shape:
            small, large = (f"{i.shape[2]}x{i.shape[1]}" for i in (images[0], image))
            raise DataError(
                f"{file}: has {large} pixels and {files[0].name} has {small}; "
                "bring them to one size with data.image_size=[HEIGHT,WIDTH]"
            )
    return Part(np.stack(images), np.array([file.parent.name for file in files]))


def _pixels(file: Path, colour: str, size: tuple[int, int] | None) -> np.ndarray:
    """One image, uint8 [C, H, W]."""
    from PIL import Image

    try:
        with Image.open(file) as image:
            plain = image.convert(colour)
            if size is not None:
                plain = plain.resize((size[1], size[0]), Image.Resampling.BILINEAR)
            pixels = np.asarray(plain, dtype=np.uint8)
    except OSError as error:
        raise DataError(f"{file}: is no image that can be read; replace or delete it") from error
    return pixels[None] if colour == "L" else np.ascontiguousarray(pixels.transpose(2, 0, 1))
