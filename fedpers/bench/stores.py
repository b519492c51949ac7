"""Ways to keep the states of many clients: a round of 1,000 clients, and a checkpoint.

20,000 of 100,000 clients have a state of 20 KB. In the databases a state is one blob, under the client's
number and the checkpoint's, so that, as in our store, nothing is overwritten that a checkpoint holds.
All writes up to a checkpoint are one transaction.
"""

import pickle
import sqlite3
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import torch

from fedpers.core.params import Params
from fedpers.engines.memory.row_store import RowStore
from fedpers.families.split_models.client import OwnPart

CLIENTS, VISITED, ROUND, RAM_MB = 100_000, 20_000, 1000, 128


def cases(stack: ExitStack) -> Iterator[tuple[str, str, dict[str, Callable[[], Any]]]]:
    """Each store in a folder that goes with `stack`."""
    folders = {name: stack.enter_context(tempfile.TemporaryDirectory()) for name in STORES}
    stores = {name: make(Path(folders[name])) for name, make in STORES.items()}
    known = np.random.default_rng(0).permutation(CLIENTS)[:VISITED].tolist()
    for store in stores.values():
        stack.callback(store.close)
        for k in known:
            store.write(k, {"head.weight": torch.zeros(10, 512), "head.bias": torch.zeros(10)})
        store.commit()
    yield "row store", "any clients", {n: _round(s, known, 0) for n, s in stores.items()}
    yield "row store", "any, and a checkpoint", {n: _round(s, known, 1) for n, s in stores.items()}
    yield "row store", "the same clients", {n: _round(s, known[:ROUND], 0) for n, s in stores.items()}


def _round(store: Any, known: list[int], commits: int) -> Callable[[], None]:
    """1,000 clients get their state and put a new one; then so many checkpoints."""
    rng = np.random.default_rng(1)

    def run() -> None:
        for k in rng.choice(known, ROUND, replace=False).tolist():
            store.write(k, {n: v + 1 for n, v in store.read(k).items()})
        for _ in range(commits):
            store.commit()

    return run


class Rows:
    """Our store."""

    def __init__(self, folder: Path) -> None:
        self.store = RowStore(folder, RAM_MB)
        self.close = self.store.close

    def read(self, k: int) -> Params:
        params: Params = self.store.get(k, (1, 0)).head
        return params

    def write(self, k: int, head: Params) -> None:
        self.store.put(k, (1, 0), OwnPart(head))

    def commit(self) -> None:
        self.store.save(self.store.folder)
        self.store.committed()


class Database:
    """Blobs by client and checkpoint; those that only older checkpoints than the newest refer to go."""

    def __init__(self) -> None:
        self.now = 0  # the number of the next checkpoint
        self.newest = np.full(CLIENTS, -1)  # [client] the checkpoint of its newest state
        self.old: list[tuple[int, int]] = []  # client and checkpoint of states that were replaced

    def read(self, k: int) -> Params:
        arrays = pickle.loads(self.get(k, int(self.newest[k])))
        return {n: torch.from_numpy(a) for n, a in arrays.items()}

    def write(self, k: int, head: Params) -> None:
        if 0 <= self.newest[k] < self.now:
            self.old.append((k, int(self.newest[k])))
        self.newest[k] = self.now
        self.put(k, self.now, pickle.dumps({n: v.numpy() for n, v in head.items()}, protocol=5))

    def commit(self) -> None:
        self.flush()
        self.now += 1
        for key in self.old:
            self.delete(*key)
        self.old.clear()

    get: Callable[[int, int], bytes]
    put: Callable[[int, int, bytes], Any]
    delete: Callable[[int, int], Any]
    flush: Callable[[], Any]
    close: Callable[[], Any]


class Sqlite(Database):
    """A table, its pages cached in as much RAM as our store may use."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        run = sqlite3.connect(folder / "states.db", isolation_level=None).execute
        for setting in ("journal_mode=WAL", "synchronous=NORMAL", f"cache_size=-{RAM_MB * 1024}"):
            run(f"PRAGMA {setting}")
        run("CREATE TABLE states (k INTEGER, at INTEGER, blob BLOB, PRIMARY KEY (k, at))")
        run("BEGIN")
        self.get = lambda *key: run("SELECT blob FROM states WHERE k=? AND at=?", key).fetchone()[0]
        self.put = lambda *row: run("INSERT OR REPLACE INTO states VALUES (?, ?, ?)", row)
        self.delete = lambda *key: run("DELETE FROM states WHERE k=? AND at=?", key)
        self.flush = lambda: [run(s) for s in ("COMMIT", "PRAGMA wal_checkpoint(FULL)", "BEGIN")]
        self.close = lambda: run("COMMIT").connection.close()


class Lmdb(Database):
    """A memory-mapped tree; its pages are cached by the system."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.env = lmdb.open(str(folder / "states"), map_size=2**34)
        self.txn = self.env.begin(write=True)
        key = struct.Struct(">QQ").pack
        self.get = lambda k, at: self.txn.get(key(k, at))
        self.put = lambda k, at, blob: self.txn.put(key(k, at), blob)
        self.delete = lambda k, at: self.txn.delete(key(k, at))

    def flush(self) -> None:
        self.txn.commit()
        self.txn = self.env.begin(write=True)

    def close(self) -> None:
        self.txn.abort()
        self.env.close()


STORES: dict[str, Callable[[Path], Any]] = {"ours": Rows, "sqlite3": Sqlite, "lmdb": Lmdb}
