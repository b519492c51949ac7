"""Joins the arrays of a message into few large ones.

Flower sends and stores each array of a message as objects of its own, each with several requests and many
statements of the SuperLink's database. A model of a hundred small tensors would take longer on its way than
in training; together they cost as much as one.
"""

from itertools import accumulate

from flwr.app import Array, ArrayRecord, RecordDict

STYPE = "fedpers.bundle"
MOST = 2**24  # bytes of a bundle: what is larger goes alone, for each copy of it counts


def bundled(content: RecordDict) -> RecordDict:
    """The content of a message with neighbouring arrays joined.

    The record given is emptied on the way, so that its arrays can be freed.
    """
    return RecordDict({k: _together(r) if isinstance(r, ArrayRecord) else r for k, r in content.items()})


def _together(arrays: ArrayRecord) -> ArrayRecord:
    found, waiting, size = ArrayRecord(), list[Array](), 0
    for name in list(arrays):
        array = arrays.pop(name)
        if waiting and size + len(array.data) > MOST:
            found[str(len(found))] = _bundle(waiting)
            waiting, size = [], 0
        waiting.append(array)
        size += len(array.data)
    if waiting:
        found[str(len(found))] = _bundle(waiting)
    return found


def _bundle(arrays: list[Array]) -> Array:
    """One array, whose shape holds the sizes of its parts in bytes."""
    if len(arrays) == 1:
        return arrays[0]
    sizes = tuple(len(array.data) for array in arrays)
    return Array("npy", sizes, STYPE, b"".join(array.data for array in arrays))


def parts(array: Array) -> list[bytes]:
    """The arrays of a bundle, each as NumPy stores it; of any other array its own bytes.

    Raises:
        ValueError: the sizes are not those of the bytes.
    """
    if array.stype != STYPE:
        return [array.data]
    if min(array.shape, default=0) < 1 or sum(array.shape) != len(array.data):
        raise ValueError(f"{len(array.shape)} parts of {sum(array.shape)} bytes in {len(array.data)} bytes")
    ends = list(accumulate(array.shape))
    return [array.data[end - size : end] for end, size in zip(ends, array.shape, strict=True)]
