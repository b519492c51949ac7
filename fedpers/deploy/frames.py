"""The messages between a device's two processes: a header in JSON, then arrays in NumPy's format.

No array is copied on its way, for a model may be as large as the memory: each is written from where it lies,
and stays where it was read. It imports no torch, as the process that Flower starts for a message has none.
"""

import io
import json
import math
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.lib import format as npy

SIZE = struct.Struct("!Q")  # of the header, in bytes
LARGE = 2**26  # bytes of a reply from which each copy of it counts
MOST = 2**30  # bytes that are asked of the socket at once
T = TypeVar("T")


def send(peer: socket.socket, header: Mapping[str, Any], arrays: list[Any]) -> None:
    """Send a header and arrays (or bytes that are arrays as NumPy stores them).

    The list is emptied: what was sent can be freed.
    """
    heads = [b"" if isinstance(a, bytes) else _head(a) for a in arrays]
    sizes = [len(head) + memoryview(a).nbytes for head, a in zip(heads, arrays, strict=True)]
    text = json.dumps({**header, "arrays": sizes}).encode()
    peer.sendall(SIZE.pack(len(text)) + text)
    for head in heads:
        peer.sendall(head)
        array = arrays.pop(0)
        peer.sendall(array if isinstance(array, bytes) else memoryview(array.reshape(-1).view(np.uint8)))


def receive(peer: socket.socket, read: Callable[[socket.socket, int], T]) -> tuple[dict[str, Any], list[T]]:
    """What `send` sent, arrays as `read_array` or `read_bytes` give them.

    Raises:
        EOFError: the other side went away.
    """
    header = json.loads(read_bytes(peer, SIZE.unpack(read_bytes(peer, SIZE.size))[0]))
    return header, [read(peer, size) for size in header.pop("arrays")]


def read_bytes(peer: socket.socket, size: int) -> bytes:
    """Read `size` bytes."""
    parts = []
    while size:
        part = peer.recv(min(size, MOST), socket.MSG_WAITALL)
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def read_array(peer: socket.socket, size: int) -> np.ndarray:
    """An array that was sent as so many bytes; it may be written to.

    Raises:
        ValueError: the bytes are no array of numbers.
    """
    buffer = np.empty(size, np.uint8)
    view = memoryview(buffer)  # type: ignore[arg-type]  # NumPy does not say that arrays are buffers
    while view:
        if not (count := peer.recv_into(view[:MOST])):
            raise EOFError
        view = view[count:]
    shape, by_columns, dtype, start = described(buffer[: 2**16].tobytes())
    flat = np.frombuffer(buffer, dtype, math.prod(shape), start)
    array = flat.reshape(shape, order="F" if by_columns else "C")
    return array if array.flags.aligned else array.copy()


def described(stored: bytes) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """(shape, whether it lies by columns, dtype, where the numbers begin) of an array that NumPy stored."""
    file = io.BytesIO(stored)
    version = npy.read_magic(file)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    return (*read(file), file.tell())


def _head(array: np.ndarray) -> bytes:
    """The header of an array in NumPy's format."""
    file = io.BytesIO()
    npy.write_array_header_1_0(file, npy.header_data_from_array_1_0(array))
    return file.getvalue()
