"""Image files as arrays: as viewers show them, grey or RGB, of one size and one scale."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedpers.core.errors import DataError
from fedpers.core.pixels import one_scale

if TYPE_CHECKING:
    from PIL import Image

KINDS = (".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".jp2", ".bmp", ".gif", ".webp", ".tif", ".tiff",
         ".ppm", ".pgm", ".pbm", ".pnm", ".avif")  # fmt: skip
GREY = ("1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N")  # Pillow's modes
DEEP = GREY[4:]  # 16 bits a pixel


class Look(NamedTuple):
    """What images are brought to."""

    colour: str = ""  # "L" or "RGB"; "": grey if all are
    size: tuple[int, int] | None = None  # (height, width); None: as they are, all alike

    @classmethod
    def of(cls, size: tuple[int, ...], colour: str = "") -> "Look":
        """With data.image_size: one number for a square, or [height, width]."""
        return cls(colour, (*size, *size)[:2] if size else None)  # type: ignore[arg-type]


def colour_for(shape: Sequence[int]) -> str:
    """What images become for samples of this shape: "L", "RGB", or "" where it does not say."""
    return {1: "L", 3: "RGB"}.get(shape[0], "") if len(shape) == 3 else ""


def colour_of(files: list[Path]) -> str:
    """ "L" if all images are grey, else "RGB".

    Raises:
        DataError: a file is no image.
    """
    return "L" if all(_opened(file).mode in GREY for file in files) else "RGB"


def read(files: list[Path], look: Look) -> np.ndarray:
    """The images [n, C, H, W]: bytes, or uint16 if one has 16 bits a pixel.

    Raises:
        DataError: a file is no image, is in colour where grey is wanted, or sizes differ.
    """
    images = [_pixels(file, look) for file in files]
    for file, image in zip(files, images, strict=True):
        if image.shape != images[0].shape:
            small, large = (f"{i.shape[2]}x{i.shape[1]}" for i in (images[0], image))
            raise DataError(
                f"{file}: has {large} pixels and {files[0].name} has {small}; "
                "bring them to one size with data.image_size=[HEIGHT,WIDTH]"
            )
    return np.concatenate(one_scale([image[None] for image in images]))


def _opened(file: Path) -> "Image.Image":
    """The image, its pixels not yet read.

    Raises:
        DataError: it is no image, several ones, or of pixels without a known scale.
    """
    from PIL import Image

    try:
        with Image.open(file) as image:
            frames = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)  # MPO: previews besides
    except Exception as error:  # Pillow's readers raise of all kinds
        raise _unreadable(file, error) from error
    if frames > 1:
        raise DataError(f"{file}: holds {frames} images; save the one that is the sample as a file")
    if image.mode == "F" or (image.mode == "I" and image.format not in ("PNG", "PPM")):
        raise DataError(
            f"{file}: has pixels of 32 bits, whose range is unknown; save it with 8 or 16 bits, "
            "or give arrays in .npz"
        )
    return image


def _pixels(file: Path, look: Look) -> np.ndarray:
    """One image [C, H, W], bytes or uint16."""
    from PIL import Image, ImageOps

    image = _opened(file)
    if look.colour == "L" and image.mode not in GREY:
        raise DataError(f"{file}: is in colour ({image.mode}), and grey images are expected; save it as grey")
    deep = image.mode in DEEP
    try:
        with Image.open(file) as image:
            plain = ImageOps.exif_transpose(image).convert("F" if deep else look.colour)
            if look.size is not None:
                plain = plain.resize((look.size[1], look.size[0]), Image.Resampling.BILINEAR)
            pixels = np.array(plain)
    except Exception as error:
        raise _unreadable(file, error) from error
    if deep:
        return np.stack([np.rint(pixels).astype(np.uint16)] * len(look.colour))
    return pixels[None] if look.colour == "L" else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _unreadable(file: Path, error: Exception) -> DataError:
    return DataError(f"{file}: is no image that can be read ({error}); replace or delete it")
