"""Worker processes that share a cohort with this one: forked once, one thread each, tensors in shared memory.

A process and not a thread: small models are bound by Python. This one takes a share too, which travels
nowhere. Other orders go out and answers come back as parcels in anonymous shared memory, whose
descriptors travel through a socket; a client's memory travels with its order, so any worker can serve
any client.
"""

import contextlib
import gc
import mmap
import os
import pickle
import signal
import socket
import struct
import sys
import traceback
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedpers.errors import ConfigError, FedpersError
from fedpers.parcel import Parcel, open_parcel

if TYPE_CHECKING:
    from fedpers.cohort import Cohort, Request

PRELOAD = 8 * 2**30                        # bytes of data that are decoded before the fork, at most


class Carrier:
    """A store that holds what came with the orders and collects what goes back."""

    def __init__(self) -> None:
        self.given: dict[int, Any] = {}
        self.kept: dict[int, Any] = {}

    def get(self, k: int, when: tuple[int, int]) -> Any:
        """What came with the order."""
        return self.given.get(k)

    def put(self, k: int, when: tuple[int, int], memory: Any) -> None:
        """Goes back with the answer."""
        self.kept[k] = memory


class Pool:
    """This process and `count` - 1 forked copies of it, each answering a part of a cohort's requests."""

    def __init__(self, cohort: "Cohort", count: int) -> None:
        if not hasattr(os, "memfd_create") or not hasattr(os, "fork"):
            raise ConfigError(f"engine.workers={count}: more than 1 needs Linux")
        _preload(cohort)
        self._lines: list[Line] = []
        self._pids: list[int] = []
        gc.collect()
        sys.stdout.flush()
        sys.stderr.flush()
        for _ in range(count - 1):
            ours, theirs = socket.socketpair()
            pid = os.fork()
            if pid == 0:
                _child(cohort, Line(theirs), [*(line.end for line in self._lines), ours])
            theirs.close()
            self._lines.append(Line(ours))
            self._pids.append(pid)

    def handle(self, cohort: "Cohort", requests: Sequence["Request"]) -> list[Any]:
        """The answers, in the order of the requests; memories are kept in the cohort's store."""
        *shares, own = balance([_weight(cohort, r) for r in requests], len(self._lines) + 1)
        busy = [(line, share) for line, share in zip(self._lines, shares, strict=True) if share]
        letters = [self._letter(cohort, line, [requests[i] for i in share]) for line, share in busy]
        for (line, _), letter in zip(busy, letters, strict=True):      # one that runs would slow the writing
            self._talk(line.post, letter)
        answers: list[Any] = [None] * len(requests)
        for i, answer in zip(own, cohort.runner.run(cohort, [requests[i] for i in own]), strict=True):
            answers[i] = answer
        for line, share in busy:
            heads, trees = self._talk(line.receive)
            bodies, kept = trees[: len(share)], trees[len(share) :]
            for i, *back in zip(share, heads, bodies, kept, strict=True):
                answers[i] = cohort.take_back(requests[i], *back)
        return answers

    def _letter(self, cohort: "Cohort", line: "Line", requests: Sequence["Request"]) -> Any:
        headers = [(r.k, r.header) for r in requests]
        memories = [cohort.store.get(r.k, r.when) for r in requests]
        return line.write(headers, [*(r.order for r in requests), *memories])

    def _talk(self, how: Callable[..., Any], *args: Any) -> Any:
        try:
            return how(*args)
        except (EOFError, ConnectionError) as error:
            raise FedpersError(
                "a worker process died (for lack of memory?); try engine.workers=1 or a smaller "
                "engine.chunk"
            ) from error

    def close(self) -> None:
        """End the workers."""
        for line in self._lines:
            line.close()
        for pid in self._pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        self._lines, self._pids = [], []


def balance(weights: Sequence[float], count: int) -> list[list[int]]:
    """Which worker gets which items: the heaviest first, each to the least loaded."""
    shares: list[list[int]] = [[] for _ in range(count)]
    loads = [0.0] * count
    for i in sorted(range(len(weights)), key=lambda i: (-weights[i], i)):
        lightest = loads.index(min(loads))
        shares[lightest].append(i)
        loads[lightest] += weights[i]
    return [sorted(share) for share in shares]


def _weight(cohort: "Cohort", request: "Request") -> float:
    federation = cohort.federation
    evaluates = request.header["kind"] == "evaluate"
    counts = federation.num_test if evaluates else federation.num_train
    return float(counts[request.k])


def _preload(cohort: "Cohort") -> None:
    """Decode the data before the fork, so that all workers share one copy of it."""
    federation = cohort.federation
    row = 4
    for n in federation.input_shape:
        row *= n
    if row * (int(federation.num_train.sum()) + int(federation.num_test.sum())) <= PRELOAD:
        for k in range(federation.num_clients):
            cohort.data(k)


def _child(cohort: "Cohort", line: "Line", others: Sequence[socket.socket]) -> None:
    """The life of a worker; it never returns."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)      # the parent decides
        for other in others:
            other.close()
        torch.set_num_threads(1)
        cohort.become_worker(Carrier())
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                _serve(cohort, line)
        status = 0
    except BaseException:                                 # the parent sees the end and not the reason
        traceback.print_exc()
    finally:
        os._exit(status)


def _serve(cohort: "Cohort", line: "Line") -> None:
    from fedpers.cohort import Answer, Request

    headers, trees = line.receive()
    orders, memories = trees[: len(headers)], trees[len(headers) :]
    carrier: Any = cohort.store
    carrier.given = {k: memory for (k, _), memory in zip(headers, memories, strict=True)}
    carrier.kept = {}
    requests = [Request(k, order, h) for (k, h), order in zip(headers, orders, strict=True)]
    heads: list[Any] = []
    bodies: list[Any] = [None] * len(requests)
    for i, (request, answer) in enumerate(zip(requests, cohort.handle(requests), strict=True)):
        if isinstance(answer, Exception):
            heads.append(_plain(answer))
        elif request.header["kind"] == "evaluate":        # numbers by name, no tensors
            heads.append(answer)
        else:
            heads.append(Answer(None, answer.num_examples, answer.work))
            bodies[i] = answer.body
    line.post(line.write(heads, [*bodies, *(carrier.kept.get(r.k) for r in requests)]))


def _plain(error: Exception) -> Exception:
    """An error that survives the way to another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return FedpersError(f"{type(error).__name__}: {error}")
    return error


# ---- through the socket ------------------------------------------------------------------------


class Line:
    """One end of a socket, with blocks of shared memory that both ends know by number.

    Fresh memory costs more than the copy into it, so a block is used again once the other end has
    said that nothing there refers to it any more.
    """

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self._own: dict[int, Tensor] = {}             # blocks made here
        self._free: list[int] = []
        self._theirs: dict[int, mmap.mmap] = {}       # blocks made at the other end
        self._unused: list[int] = []                  # of those, what nobody here refers to now

    def write(self, head: Any, trees: Sequence[Any]) -> tuple[bytes, list[int]]:
        """A message, to be posted, of a small picklable head and trees of tensors."""
        parcel = Parcel(trees)
        number, handles = self._space(parcel.size)
        block = self._own[number]
        parcel.write(block)
        unused, self._unused[:] = self._unused[:], []
        text = pickle.dumps((head, parcel.content, unused), protocol=pickle.HIGHEST_PROTOCOL)
        return struct.pack("<QQQ", len(text), number, len(block)) + text, handles

    def post(self, letter: tuple[bytes, list[int]]) -> None:
        """Send what was written."""
        text, handles = letter
        try:
            if handles:
                socket.send_fds(self.end, [text[:24]], handles)
            self.end.sendall(text[24:] if handles else text)
        finally:
            for handle in handles:
                os.close(handle)

    def receive(self) -> tuple[Any, list[Any]]:
        """(head, trees) of the next message; the tensors are views of a block.

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
        head, content, free = pickle.loads(text)
        self._free += free
        return head, open_parcel(content, self._seen(number))

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
        """A block of the other end; noticed when the last tensor of it goes."""
        view = memoryview(self._theirs[number])
        weakref.finalize(view, self._unused.append, number).atexit = False
        return torch.frombuffer(view, dtype=torch.uint8)


def _map(handle: int, size: int) -> mmap.mmap:
    return mmap.mmap(handle, size, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
