"""Ways to send 100 orders to a worker process and to get 100 replies back."""

import os
import pickle
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.multiprocessing
from torch import Tensor

from fedpers.bench.work import Work, make_model
from fedpers.core.params import Params
from fedpers.engines import channel as ours

COUNT = 100
Channel = tuple[Callable[[Any, list[Any]], None], Callable[[], tuple[Any, list[Any]]]]  # send, receive


def cases(stack: ExitStack) -> Iterator[tuple[str, str, dict[str, Callable[[], Any]]]]:
    """Each way for models of two sizes; the workers end with `stack`."""
    for name in ("lr", "mlp"):
        order = make_model(Work(name)).init(0)
        ways: dict[str, Callable[[], Any]] = {
            way: _cpu_of(round_trip(order, make, stack)) for way, make in CHANNELS.items()
        }
        yield "worker channel", name, ways | {"no other process": partial(_alone, order)}


def _cpu_of(trip: Callable[[], tuple[list[Tensor], float]]) -> Callable[[], float]:
    return lambda: trip()[1]


def _alone(order: Params) -> None:
    _sum(_answers(order))


def round_trip(
    order: Params, make: Callable[[socket.socket], Channel], stack: ExitStack
) -> Callable[[], tuple[list[Tensor], float]]:
    """Fork a worker; returns what sends it one order for all clients.

    That returns the sum of the replies, and CPU seconds of the worker.
    """
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            _work(*make(theirs))
        finally:  # nothing of the parent is cleaned up here
            os._exit(0)
    theirs.close()
    send, receive = make(ours)
    stack.callback(os.waitpid, pid, 0)
    stack.callback(os.kill, pid, signal.SIGKILL)

    def trip() -> tuple[list[Tensor], float]:
        send(None, [order] * COUNT)
        cpu, replies = receive()
        return _sum(replies), cpu

    return trip


def _work(send: Callable[..., None], receive: Callable[..., Any]) -> None:
    """The life of a worker: answers until it is killed, and tells its CPU seconds since the last answer."""
    torch.set_num_threads(1)
    last = time.process_time()
    while True:
        _, orders = receive()
        now = time.process_time()
        send(now - last, _answers(orders[0]))
        last = now


def _answers(order: Params) -> list[Params]:
    """Rows of fresh stacks, as a stack of clients replies."""
    stacks = {k: v.expand(COUNT, *v.shape).clone() for k, v in order.items()}
    return [dict(zip(stacks, row, strict=True)) for row in zip(*stacks.values(), strict=True)]


def _sum(replies: list[Params]) -> list[Tensor]:
    """Read all replies, as an average does."""
    total = [torch.zeros_like(v) for v in replies[0].values()]
    for reply in replies:
        torch._foreach_add_(total, list(reply.values()))
    return total


def _ours(end: socket.socket) -> Channel:
    made = ours.Channel(end)
    return lambda head, trees: made.send(made.write(head, trees)), made.receive


def _torch(end: socket.socket) -> Channel:
    """torch.multiprocessing: each storage once, in shared memory of its own."""
    from multiprocessing.reduction import ForkingPickler

    torch.multiprocessing.set_sharing_strategy("file_system")  # descriptors need a server and its key
    pipe = Connection(os.dup(end.fileno()))
    return lambda head, trees: pipe.send_bytes(ForkingPickler.dumps((head, trees))), pipe.recv


def _out_of_band(end: socket.socket) -> Channel:
    """Pickle 5: the tensors as arrays, whose bytes follow the pickle."""
    pipe = Connection(os.dup(end.fileno()))

    def send(head: Any, trees: list[Params]) -> None:
        buffers: list[pickle.PickleBuffer] = []
        once = {id(t): {k: v.numpy() for k, v in t.items()} for t in trees}
        arrays = [once[id(t)] for t in trees]
        pipe.send_bytes(pickle.dumps((head, arrays), protocol=5, buffer_callback=buffers.append))
        pipe.send([b.raw().nbytes for b in buffers])
        for buffer in buffers:
            pipe.send_bytes(buffer.raw())

    def receive() -> tuple[Any, list[Params]]:
        text = pipe.recv_bytes()
        buffers = [bytearray(n) for n in pipe.recv()]
        for buffer in buffers:
            pipe.recv_bytes_into(buffer)
        head, arrays = pickle.loads(text, buffers=buffers)
        return head, [{k: torch.from_numpy(v) for k, v in tree.items()} for tree in arrays]

    return send, receive


CHANNELS: dict[str, Callable[[socket.socket], Channel]] = {
    "ours": _ours,
    "torch.multiprocessing": _torch,
    "pickle 5, out of band": _out_of_band,
}
