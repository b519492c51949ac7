"""The divisor of pixel arrays, so that one picture has the same numbers with every type of pixel."""

from collections.abc import Sequence

import numpy as np

WHITES = {8: 255, 16: 65535}  # by bits


def white(x: np.ndarray) -> int:
    """What x [n, ...] is divided by for a model: 255 for bytes, 65535 for images of 16 bits, else 1.

    16-bit unsigned integers are taken for pixels only in images [n, C, H, W]; elsewhere they are counts.
    """
    if x.dtype == np.uint8:
        return WHITES[8]
    return WHITES[16] if x.dtype.kind == "u" and x.dtype.itemsize == 2 and x.ndim == 4 else 1


def one_scale(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The arrays [n, ...] with one `white`, so that they can be joined and stay what each is alone."""
    whites = {white(x) for x in arrays}
    if len(whites) < 2:
        return list(arrays)
    if 1 in whites:
        return [x / white(x) for x in arrays]
    return [
        x.astype(np.uint16) * np.uint16(257) if x.dtype == np.uint8 else x for x in arrays
    ]  # x/255 = 257x/65535


def channels_first(x: np.ndarray) -> np.ndarray:
    """Images of pixels [n, H, W, C] as [n, C, H, W], told by 1, 3 or 4 channels in the last place alone."""
    if x.ndim != 4 or white(x) == 1:
        return x
    first, last = x.shape[1], x.shape[3]
    return (
        np.ascontiguousarray(np.moveaxis(x, 3, 1)) if last in (1, 3, 4) and first not in (1, 3, last) else x
    )


def fitted(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """x [n, ...] with samples of this shape: one of the two is flat, or they differ in axes of length 1.

    None where the numbers would have to be put in another order, or are too many or too few.
    """
    own = x.shape[1:]
    flat = len(own) <= 1 or len(shape) <= 1
    plain = [tuple(n for n in s if n != 1) for s in (own, shape)]
    if np.prod(own, dtype=int) != np.prod(shape, dtype=int) or not (flat or plain[0] == plain[1]):
        return None
    return x.reshape(len(x), *shape)
