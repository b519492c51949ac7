"""States of any number of clients in bounded RAM; what does not fit is in flat files.

A client that was never visited costs nothing. A row that a checkpoint refers to is never
overwritten, its client's next state takes another one. So a checkpoint is a list of rows, and
writing it copies nothing but what has changed since the last.
"""

import json
import tempfile
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedpers.core.errors import CheckpointError
from fedpers.core.memory import sparse_zeros
from fedpers.core.pytree import TreeSpec, own_leaves
from fedpers.core.serialization import pack, read_record, unpack, write_record
from fedpers.engines.memory.client_store import CLIENTS, ClientStore, When
from fedpers.engines.memory.row_file import RowFile, read_row, row_size, take_apart

OVERHEAD = 2000  # bytes of Python objects in a state, about
SWATH = 4 * 2**20  # bytes that are written at a time, about
PLACE = np.dtype([("kind", np.int32), ("row", np.int32)])  # side by side: one page of memory to touch
PART = 4  # a stack is kept as one if it takes no more than this part of the RAM
USED = 4  # ... and as long as more than this part of its rows is in use, or half where RAM is short


class Stack:
    """Clients whose states are rows of the same tensors; their memory is freed with the last of them."""

    def __init__(self, clients: Sequence[int], row: int) -> None:
        self.clients = dict.fromkeys(clients)  # whose newest states are here, in order
        self.count, self.row = len(clients), row  # rows, and bytes of one


Held = tuple[Any, TreeSpec, Stack | None]  # state, its kind, and where it is a row


class RowStore(ClientStore):
    """A store of states that holds at most `memory_mb` MiB of them in RAM, the others in files.

    Without a folder the files are temporary.
    """

    keeps_stacks = True

    def __init__(self, folder: Path | None = None, memory_mb: float = 512, device: str = "cpu") -> None:
        self._temporary = None if folder else tempfile.TemporaryDirectory(prefix="fedpers-")
        self.folder = folder or Path(self._temporary.name)  # type: ignore[union-attr]
        self.limit, self.device = int(memory_mb * 2**20), device
        self.held = 0  # bytes in RAM
        self._hot: OrderedDict[int, Held] = OrderedDict()  # oldest use first
        self._dirty: set[int] = set()  # in RAM, newer than on disk
        self._forget()
        self._kinds: list[TreeSpec] = []
        self._numbers: dict[TreeSpec, int] = {}
        self._files: dict[int, RowFile] = {}  # by size of a row
        self._saved: dict[int, np.ndarray] = {}  # rows of the newest checkpoint

    @property
    def states(self) -> dict[int, Any]:
        """All states; for looking at a small federation."""
        known = {*np.flatnonzero(self._there).tolist(), *self._hot}
        return {k: self._hot[k][0] if k in self._hot else self._read(k) for k in sorted(known)}

    def get(self, k: int, when: When) -> Any:
        """The latest state of client k, or None."""
        held = self._hot.get(k)
        if held is None:
            return self._read(k)
        self._hot.move_to_end(k)
        return held[0]

    def get_all(self, wanted: Sequence[tuple[int, When]]) -> list[Any]:
        """`get` of several clients; which of them are on disk is asked in one."""
        if not self._hot and not self._files:
            return [None] * len(wanted)  # nobody has a state
        away = np.array([k for k, _ in wanted if k not in self._hot], dtype=np.int64)
        known = away[away < len(self._there)]
        new = set(away.tolist()).difference(known[self._there[known]].tolist())
        return [None if k in new else self.get(k, when) for k, when in wanted]

    def _read(self, k: int) -> Any:
        """The state that is on disk, or None."""
        if k >= len(self._there) or not self._there.item(k):
            return None
        kind = self._kinds[self._kind[k]]
        return read_row(kind, self._file(row_size(kind)).read(int(self._row[k])), self.device)

    def put(self, k: int, when: When, state: Any) -> None:
        """Replace the state of client k."""
        self.put_alike([k], when, [state])

    def put_alike(self, clients: Sequence[int], when: When, states: Sequence[Any]) -> None:
        """Replace the states of clients by states of one kind."""
        kind, tensors = take_apart(states[0])
        cost, stack = _cost(kind), None
        self._release(clients)
        if any(t._base is not None for t in tensors):
            stack = Stack(clients, cost) if cost * len(clients) <= self.limit // PART else None
            states = states if stack else [own_leaves(state) for state in states]
        for k, state in zip(clients, states, strict=True):
            self._hot[k] = state, kind, stack
        self.held += cost * len(clients)
        self._dirty.update(clients)
        if self.held > self.limit:
            self._make_way()

    def _release(self, clients: Iterable[int]) -> None:
        """Forget what is in RAM of these clients."""
        left: dict[int, Stack] = {}
        used = USED if 2 * self.held <= self.limit else 2
        for k in clients:
            _, kind, stack = self._hot.pop(k, (None, None, None))
            if stack is not None:
                del stack.clients[k]
                left[id(stack)] = stack
            elif kind is not None:
                self.held -= _cost(kind)
        for stack in left.values():
            if used * len(stack.clients) <= stack.count:
                self._break_up(stack)

    def _break_up(self, stack: Stack) -> None:
        """Give the rows that are still used memory of their own, so that the others' is freed."""
        for k in stack.clients:
            state, kind, _ = self._hot[k]
            self._hot[k] = own_leaves(state), kind, None
        self.held -= stack.row * (stack.count - len(stack.clients))

    def _make_way(self) -> None:
        """Write the oldest states to disk; more than needed, since many at a time cost less."""
        least, late = self.limit - min(self.limit // 16, SWATH), []
        while self.held > least and len(self._hot) > 1:
            oldest, (_, kind, stack) = next(iter(self._hot.items()))
            for k in [oldest] if stack is None else stack.clients:  # a stack's memory is freed as a whole
                state, kind, _ = self._hot.pop(k)
                if k in self._dirty:
                    late.append((k, state, kind))
            self.held -= _cost(kind) if stack is None else stack.row * stack.count
        self._write(late)

    def _write(self, states: Iterable[tuple[int, Any, TreeSpec]]) -> None:
        """Put states on disk, each in its old row if no checkpoint refers to that."""
        groups: dict[TreeSpec, list[tuple[int, Any]]] = defaultdict(list)
        for k, state, kind in states:
            groups[kind].append((k, state))
        for kind, members in groups.items():
            at_once = max(SWATH // max(row_size(kind), 1), 1)
            for first in range(0, len(members), at_once):
                self._write_alike(kind, *zip(*members[first : first + at_once], strict=True))

    def _write_alike(self, kind: TreeSpec, clients: Sequence[int], states: Sequence[Any]) -> None:
        file, number, places = self._file(row_size(kind)), self._register(kind), np.array(clients)
        self._make_room(max(clients))
        pairs = zip(clients, self._there[places].tolist(), strict=True)
        rows = [self._row_for(k, file) if there else file.take() for k, there in pairs]
        file.write(rows, kind.columns(states))
        self._there[places], self._kind[places], self._row[places] = True, number, rows
        self._dirty.difference_update(clients)

    def _row_for(self, k: int, file: RowFile) -> int:
        """Where client k's state may be written, which is on disk already."""
        old, row = self._file(row_size(self._kinds[self._kind[k]])), int(self._row[k])
        if old is file and not file.is_safe(row):
            return row
        old.release(row)
        return file.take()

    def _register(self, kind: TreeSpec) -> int:
        if kind not in self._numbers:
            self._numbers[kind] = len(self._kinds)
            self._kinds.append(kind)
        return self._numbers[kind]

    def _file(self, size: int) -> RowFile:
        if size not in self._files:
            self._files[size] = RowFile(self.folder / f"rows-{size}.bin", size)
        return self._files[size]

    def _make_room(self, k: int) -> None:
        if k >= len(self._there):
            kind, row, there = self._kind, self._row, np.flatnonzero(self._there)
            self._forget(1 << int(k).bit_length())
            self._there[there], self._kind[there], self._row[there] = True, kind[there], row[there]

    def _forget(self, size: int = 0) -> None:
        """Forget all states on disk."""
        self._there = sparse_zeros(size, np.bool_)  # [client] on disk: a few pages even of a large population
        places = sparse_zeros(size, PLACE)
        self._kind = places["kind"]  # [client] a place in `_kinds`, of those that are there
        self._row = places["row"]  # [client]

    # ---- checkpoints ----------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write the list of rows into `folder`, and to the files what is not there yet.

        Until `committed` is called both this checkpoint and the one before can be gone back to.
        """
        self._write((k, *self._hot[k][:2]) for k in sorted(self._dirty))
        for file in self._files.values():
            file.sync()
        clients = np.flatnonzero(self._there)
        body = {
            "clients": torch.from_numpy(clients),
            "kinds": torch.from_numpy(self._kind[clients]),
            "rows": torch.from_numpy(self._row[clients]),
            "skeletons": tuple(_describe(kind) for kind in self._kinds),
        }
        write_record(folder / CLIENTS, body)
        self._saved = self._used()
        for size, rows in self._saved.items():
            file = self._files[size]
            old = np.flatnonzero(file.safe)
            file.keep(rows, np.union1d(rows, old))

    def committed(self) -> None:
        """Note that the last checkpoint is complete; rows of the one before are freed."""
        used = self._used()
        for size, file in self._files.items():
            file.keep(used[size], self._saved.get(size, np.zeros(0, dtype=np.int64)))

    def load(self, folder: Path) -> None:
        """Go back to what `save` wrote into `folder`.

        Raises:
            CheckpointError: the list is damaged, or it does not fit the files.
        """
        body = read_record(folder / CLIENTS)
        try:
            clients = body["clients"].numpy()
            self._kinds = [_understand(s) for s in body["skeletons"]]
            kinds, rows = body["kinds"].numpy(), body["rows"].numpy()
        except (KeyError, TypeError, AttributeError) as error:
            path = folder / CLIENTS
            raise CheckpointError(f"{path} is not a list of states: {error!r}") from error
        self._numbers = {kind: i for i, kind in enumerate(self._kinds)}
        self._hot.clear()
        self._dirty.clear()
        self.held = 0
        self._forget()
        self._make_room(int(clients.max(initial=-1)))
        self._there[clients], self._kind[clients], self._row[clients] = True, kinds, rows
        self._saved = self._used()
        for size, used in self._saved.items():
            self._file(size).keep(used, used)

    def _used(self) -> dict[int, np.ndarray]:
        """{bytes of a row: numbers of the rows in use}, an entry per file."""
        sizes = np.array([row_size(kind) for kind in self._kinds], dtype=np.int64)
        there = np.flatnonzero(self._there)
        size_of = sizes[self._kind[there]] if len(sizes) else np.zeros(0, dtype=np.int64)
        every = {*sizes.tolist(), *self._files}
        return {size: self._row[there][size_of == size] for size in every}

    def close(self) -> None:
        """Close the files; temporary ones go."""
        for file in self._files.values():
            file.close()
        if self._temporary is not None:
            self._temporary.cleanup()


def _cost(kind: TreeSpec) -> int:
    """Bytes that a state takes in RAM."""
    return OVERHEAD + kind.nbytes


def _describe(kind: TreeSpec) -> str:
    """A kind as text: the skeleton of a record of that kind, and its tensors' shapes."""
    empty = read_row(kind, torch.zeros(max(row_size(kind), 1), dtype=torch.uint8))
    skeleton, arrays = pack(empty)
    shapes = [[list(a.shape), a.dtype.name] for a in arrays]
    return json.dumps([skeleton, shapes])


def _understand(text: str) -> TreeSpec:
    skeleton, shapes = json.loads(text)
    return take_apart(unpack(skeleton, [np.zeros(s, dtype=d) for s, d in shapes]))[0]
