"""Files of rows of equal size, read and written in place: the disk side of a store of states."""

import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpers.core.errors import CheckpointError
from fedpers.core.memory import punch
from fedpers.core.pytree import TreeSpec, flatten, neighbours, num_bytes, spec_of

ALIGN = 8
LATE = 2**25  # bytes that may be on their way to the disk when more come
HOLE = 2**16  # bytes of neighbouring rows that are worth a call to give back


def row_size(spec: TreeSpec) -> int:
    """Bytes of the row of a tree."""
    return sum(_aligned(num_bytes(*t)) for t in spec.tensors)


def read_row(spec: TreeSpec, block: Tensor, device: str = "cpu") -> Any:
    """The tree whose tensors are in a row, uint8 [row_size]."""
    columns, at = [], 0
    for shape, dtype in spec.tensors:
        count = num_bytes(shape, dtype)
        part = block[at : at + count].view(dtype) if count else torch.empty(0, dtype=dtype)
        columns.append([part.view(shape).to(device)])
        at += _aligned(count)
    return spec.unstack(columns, 1)[0]


def take_apart(tree: Any) -> tuple[TreeSpec, list[Tensor]]:
    """(structure, tensors) of a tree; plain numbers are part of the structure, which like rows share."""
    flat, structure = flatten(tree)
    return spec_of(flat, structure, numbers=False), [x for x in flat if isinstance(x, Tensor)]


def _aligned(count: int) -> int:
    return -(-count // ALIGN) * ALIGN


class RowFile:
    """Rows of `size` bytes. A safe row belongs to a checkpoint; it is never written again.

    A thread writes while others compute; what fails there is an error of a later call.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size = path, size
        self.high = 0  # rows that were ever taken
        self.safe = np.zeros(0, dtype=bool)  # [high or less]
        self._free: list[int] = []
        self._handle = -1
        self._writer: ThreadPoolExecutor | None = None
        self._late: deque[tuple[Future[None], frozenset[int]]] = deque()  # and their rows
        self._block = torch.zeros(0, size, dtype=torch.uint8)  # the thread's own

    def take(self) -> int:
        """The number of a free row."""
        if self._free:
            return self._free.pop()
        self.high += 1
        return self.high - 1

    def is_safe(self, row: int) -> bool:
        """Whether a checkpoint refers to this row."""
        return row < len(self.safe) and bool(self.safe[row])

    def release(self, row: int) -> None:
        """Free a row; one that a checkpoint refers to stays."""
        if not self.is_safe(row):
            self._free.append(row)

    def keep(self, used: np.ndarray, safe: np.ndarray) -> None:
        """Mark rows `safe` as a checkpoint's; rows that are neither in `safe` nor in `used` are free.

        Disk space of those that belonged to one is given back: where each round changes all clients, that is
        the whole checkpoint before.
        """
        before = self.safe
        self.high = max(self.high, int(max(used.max(initial=-1), safe.max(initial=-1))) + 1)
        self.safe = np.zeros(self.high, dtype=bool)
        self.safe[safe] = True
        taken = self.safe.copy()
        taken[used] = True
        self._free = np.flatnonzero(~taken).tolist()
        self._give_back(np.flatnonzero(before & ~taken[: len(before)]))

    def _give_back(self, rows: np.ndarray) -> None:
        """Give their disk space back; they are written anew before they are read."""
        for some in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
            if len(some) * self.size >= HOLE:
                punch(self._open(), int(some[0]) * self.size, len(some) * self.size)

    def write(self, rows: Sequence[int], columns: Sequence[Sequence[Tensor]]) -> None:
        """Write tensors, [column][row], which nobody may change; neighbouring rows go in one piece.

        Raises:
            CheckpointError: the file system refuses, or has refused before.
        """
        while self._late and (self._late[0][0].done() or self._waiting() > LATE):
            self._wait(len(self._late) - 1)
        self._writer = self._writer or ThreadPoolExecutor(1, thread_name_prefix="fedpers-rows")
        done = self._writer.submit(self._put_all, self._open(), rows, columns)
        self._late.append((done, frozenset(rows)))

    def _waiting(self) -> int:
        """Bytes that are given to the writing thread and not written yet."""
        return self.size * sum(len(rows) for _, rows in self._late)

    def _wait(self, least: int = 0) -> None:
        """Until no more than that many calls of `write` are on their way."""
        while len(self._late) > least:
            self._late.popleft()[0].result()

    def _put_all(self, handle: int, rows: Sequence[int], columns: Sequence[Sequence[Tensor]]) -> None:
        block = self._filled(columns, len(rows))
        cuts = [i for i in range(1, len(rows)) if rows[i] != rows[i - 1] + 1]
        for first, last in zip([0, *cuts], [*cuts, len(rows)], strict=True):
            self._put(handle, block[first:last], rows[first])

    @torch.no_grad()
    def _filled(self, columns: Sequence[Sequence[Tensor]], count: int) -> Tensor:
        """`count` rows, uint8 [count, size], in memory that the next call uses again."""
        if len(self._block) < count:
            self._block = torch.zeros(count, self.size, dtype=torch.uint8)
        block, at = self._block[:count], 0
        for column in columns:
            shape, dtype = column[0].shape, column[0].dtype
            width = num_bytes(shape, dtype)
            if width:
                part = block[:, at : at + width].view(dtype).view(count, *shape)
                stack = neighbours(column)
                torch.stack([t.cpu() for t in column], out=part) if stack is None else part.copy_(stack)
            at += _aligned(width)
        return block

    def _put(self, handle: int, block: Tensor, row: int) -> None:
        content: Any = block.numpy()
        try:
            done = os.pwrite(handle, content, row * self.size) if block.numel() else 0
        except OSError as error:
            raise CheckpointError(f"cannot write {self.path}: {error}; free space") from error
        if done < block.numel():
            raise CheckpointError(f"cannot write {self.path}: the disk is full; free space")

    def read(self, row: int) -> Tensor:
        """The bytes of a row, uint8.

        Raises:
            CheckpointError: the file is shorter than that.
        """
        while any(row in rows for _, rows in self._late):
            self._wait(len(self._late) - 1)
        content = bytearray(max(self.size, 1))
        if self.size and os.preadv(self._open(), [content], row * self.size) < self.size:
            raise CheckpointError(f"{self.path} ends before row {row}: it is damaged or missing")
        return torch.frombuffer(content, dtype=torch.uint8)

    def sync(self) -> None:
        """Make what was written durable."""
        self._wait()
        if self._handle >= 0:
            os.fsync(self._handle)

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.shutdown()
            self._writer = None
        self._late.clear()
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _open(self) -> int:
        if self._handle < 0:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        return self._handle
