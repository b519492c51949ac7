"""One end of a socket between two processes that share blocks of memory."""

import mmap
import os
import pickle
import socket
import struct
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedpers.engines.shared_memory import PackedTrees, unpack_trees

Message = tuple[bytes, list[int]]  # what goes through the socket, descriptors of new blocks


class Channel:
    """One end of a socket, with blocks of shared memory that both ends know by number.

    Fresh memory costs more than the copy into it, so a block is used again once the other end has
    said that nothing there refers to it any more.
    """

    def __init__(self, end: socket.socket, device: str = "cpu") -> None:
        self.end, self.device = end, device
        self._own: dict[int, Tensor] = {}  # blocks made here
        self._free: list[int] = []
        self._theirs: dict[int, mmap.mmap] = {}  # blocks made at the other end
        self._unused: list[int] = []  # of those, what nobody here refers to now

    def write(self, about: Any, trees: Sequence[Any]) -> Message:
        """A message made of a small picklable object and trees of tensors, ready for `send`."""
        packed = PackedTrees(trees)
        number, handles = self._space(packed.size)
        block = self._own[number]
        packed.write(block)
        unused, self._unused[:] = self._unused[:], []
        text = pickle.dumps((about, packed.content, unused), protocol=pickle.HIGHEST_PROTOCOL)
        return struct.pack("<QQQ", len(text), number, len(block)) + text, handles

    def send(self, message: Message) -> None:
        """Send a message that `write` made.

        Raises:
            ConnectionError: the other end is gone.
        """
        text, handles = message
        try:
            if handles:
                socket.send_fds(self.end, [text[:24]], handles)
            self.end.sendall(text[24:] if handles else text)
        finally:
            for handle in handles:
                os.close(handle)

    def receive(self) -> tuple[Any, list[Any]]:
        """(object, trees) of the next message; the tensors are views of a block, or of its copy on a GPU.

        Raises:
            EOFError: the other end is gone.
        """
        first, handles, _, _ = socket.recv_fds(self.end, 24, 1)
        if len(first) < 24:
            raise EOFError
        length, number, size = struct.unpack("<QQQ", first)
        for handle in handles:
            self._theirs[number] = _map(handle, size)
            os.close(handle)
        text = bytearray(length)
        view, got = memoryview(text), 0
        while got < length:
            count = self.end.recv_into(view[got:])
            if not count:
                raise EOFError
            got += count
        about, content, free = pickle.loads(text)
        self._free += free
        block = self._seen(number)
        return about, unpack_trees(content, block if self.device == "cpu" else block.to(self.device))

    def close(self) -> None:
        """Close the socket."""
        self.end.close()

    def _space(self, size: int) -> tuple[int, list[int]]:
        """(number of a block that holds `size` bytes, its descriptor if it is new)."""
        for number in self._free:
            if len(self._own[number]) >= size:
                self._free.remove(number)
                return number, []
        number, room = len(self._own), max(size + size // 8, mmap.PAGESIZE)
        handle = os.memfd_create("fedpers")
        os.ftruncate(handle, room)
        self._own[number] = torch.frombuffer(_map(handle, room), dtype=torch.uint8)
        return number, [handle]

    def _seen(self, number: int) -> Tensor:
        """A block of the other end, which is told when the last tensor in it is freed."""
        view = memoryview(self._theirs[number])
        weakref.finalize(view, self._unused.append, number).atexit = False
        return torch.frombuffer(view, dtype=torch.uint8)


def _map(handle: int, size: int) -> mmap.mmap:
    return mmap.mmap(handle, size, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
