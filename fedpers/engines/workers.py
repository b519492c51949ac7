"""Worker processes that share a cohort with this one: one thread each, tensors in shared memory.

Processes and not threads, since small models are bound by Python's lock. This process takes a share of
the clients too. The workers' orders go out and their answers come back in blocks of anonymous shared
memory, whose descriptors travel through a socket; a client's state travels with its order, so any
worker can serve any client. They are forked once, or started anew where GPUs are used.
"""

import contextlib
import gc
import os
import pickle
import signal
import socket
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fedpers.core.errors import ConfigError, FedpersError
from fedpers.core.host import owned
from fedpers.core.memory import gc_frozen
from fedpers.core.pytree import own_leaves
from fedpers.core.threads import threads
from fedpers.engines.channel import Channel
from fedpers.engines.dealing import Speeds, balance
from fedpers.engines.memory.client_store import ClientStore
from fedpers.engines.population import Population
from fedpers.engines.runner import Runner
from fedpers.flower.messages import Answer, Request

Starter = Callable[[int, str], tuple[int, Channel]]  # (worker, our device): its process, a way to it
WORKER_DIED = "a worker process died"
PRELOAD = 8 * 2**30  # bytes of data that are decoded before the fork, at most


class TransientStore(ClientStore):
    """A store for one exchange: it holds the states that came with the orders, and collects the new ones."""

    keeps_stacks = True  # until they are sent

    def __init__(self) -> None:
        self.given: dict[int, Any] = {}
        self.kept: dict[int, Any] = {}
        self.writing = 0.0  # seconds that the last answers took to be written

    def get(self, k: int, when: tuple[int, int]) -> Any:
        """The state that came with the order, or None."""
        return self.given.get(k)

    def put(self, k: int, when: tuple[int, int], state: Any) -> None:
        """Keep the state, to be sent with the answer."""
        self.kept[k] = state


class Pool:
    """This process and `count` - 1 others, each answering a part of the requests.

    Args:
        population: the clients.
        runner: this process's own.
        starter: starts a worker that makes its clients itself; None: workers are copies of this process.
    """

    def __init__(self, population: Population, runner: Runner, starter: Starter | None = None) -> None:
        self.population, self.runner = population, runner
        self.count = count = runner.config.workers
        if not hasattr(os, "memfd_create") or not hasattr(os, "fork"):
            raise ConfigError(f"engine.workers={count}: more than 1 needs Linux")
        self._channels: list[Channel] = []
        self._pids: list[int] = []
        self._speeds: dict[str, Speeds] = defaultdict(lambda: Speeds(count))  # by kind of request; ours last
        if starter is None:
            _preload(population)
            gc.collect()
            sys.stdout.flush()
            sys.stderr.flush()
        for i in range(1, count):
            pid, channel = starter(i, population.device) if starter else self._forked()
            self._channels.append(channel)
            self._pids.append(pid)

    def _forked(self) -> tuple[int, Channel]:
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            others = [*(c.end for c in self._channels), ours]
            _child(self.population, self.runner, Channel(theirs), others)
        theirs.close()
        return pid, Channel(ours)

    def handle(self, requests: Sequence[Request]) -> list[Any]:
        """The answers, in the order of the requests; states are kept in this process's store."""
        weights = [_weight(self.population, r) for r in requests]
        speeds = self._speeds[requests[0].header.kind]
        *shares, own = balance(weights, speeds.relative() if self._may_differ() else [1.0] * self.count)
        busy = [(i, share) for i, share in enumerate(shares) if share]
        messages = [self._message(self._channels[i], [requests[j] for j in share]) for i, share in busy]
        for (i, _), message in zip(busy, messages, strict=True):  # one that runs would slow the writing
            self._talk(self._channels[i].send, message)
        answers: list[Any] = [None] * len(requests)
        began = time.monotonic()
        for j, answer in zip(own, self.runner.run(self.population, [requests[j] for j in own]), strict=True):
            answers[j] = answer
        speeds.add(self.count - 1, sum(weights[j] for j in own), time.monotonic() - began)
        for i, share in busy:
            (outcomes, seconds), trees = self._talk(self._channels[i].receive)
            speeds.add(i, sum(weights[j] for j in share), seconds)
            bodies, kept = trees[: len(share)], trees[len(share) :]
            for j, *back in zip(share, outcomes, bodies, kept, strict=True):
                answers[j] = self._take_back(requests[j], *back)
        return answers

    def _may_differ(self) -> bool:
        """Whether results are equal bits whichever process serves a client; only then may speeds decide."""
        return self.population.device == "cpu" and not self.population.convolves

    def _message(self, channel: Channel, requests: Sequence[Request]) -> Any:
        headers = [(r.k, r.header) for r in requests]
        states = self.population.store.get_all([(r.k, r.when) for r in requests])
        return channel.write(headers, [*(r.order for r in requests), *states])

    def _talk(self, how: Callable[..., Any], *args: Any) -> Any:
        try:
            return how(*args)
        except (EOFError, ConnectionError) as error:
            raise FedpersError(
                f"{WORKER_DIED} (out of memory?); try engine.workers=1, fewer devices or a smaller "
                "engine.chunk"
            ) from error

    def _take_back(
        self, request: Request, outcome: Answer | Exception, body: Any, kept: Any
    ) -> Answer | Exception:
        """The outcome that a worker sent; the client's new state is stored in this process."""
        if kept is not None:
            self.population.store.put(request.k, request.when, own_leaves(kept))
        if isinstance(outcome, Exception) or body is None:
            return outcome
        return outcome._replace(body=body)

    def close(self) -> None:
        """End the workers."""
        for channel in self._channels:
            channel.close()
        for pid in self._pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        self._channels, self._pids = [], []


def _weight(population: Population, request: Request) -> float:
    federation = population.federation
    evaluates = request.header.kind == "evaluate"
    counts = federation.num_test if evaluates else federation.num_train
    return float(counts[request.k])


def _preload(population: Population) -> None:
    """Decode the data before the fork, so that all workers share one copy of it."""
    federation = population.federation
    row = 4
    for n in federation.input_shape:
        row *= n
    if row * (int(federation.num_train.sum()) + int(federation.num_test.sum())) <= PRELOAD:
        for k in range(federation.num_clients):
            population.data(k)


def _child(population: Population, runner: Runner, channel: Channel, others: Sequence[socket.socket]) -> None:
    """Serve requests until the parent closes the socket; never returns."""
    status = 1
    try:
        leave_to_parent()
        for other in others:
            other.close()
        owned()
        torch.set_num_threads(1)
        population.store = TransientStore()
        serve(population, runner, channel)
        status = 0
    except BaseException:  # the parent sees only that the process ended
        traceback.print_exc()
    finally:
        os._exit(status)


def leave_to_parent() -> None:
    """Ignore the signals that a scheduler sends to all processes of a job; the main process handles them."""
    for name in ("SIGINT", "SIGTERM", "SIGUSR1"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)


def serve(population: Population, runner: Runner, channel: Channel) -> None:
    """Answer requests until the channel's other end is closed; the population's store is a TransientStore."""
    store = population.store
    assert isinstance(store, TransientStore)
    with threads(1), gc_frozen(), contextlib.suppress(EOFError, ConnectionError):
        while True:
            _serve(population, runner, store, channel)


def _serve(population: Population, runner: Runner, store: TransientStore, channel: Channel) -> None:
    headers, trees = channel.receive()
    began = time.monotonic()
    orders, states = trees[: len(headers)], trees[len(headers) :]
    store.given = {k: state for (k, _), state in zip(headers, states, strict=True)}
    store.kept = {}
    requests = [Request(k, order, h) for (k, h), order in zip(headers, orders, strict=True)]
    outcomes: list[Any] = []
    bodies: list[Any] = [None] * len(requests)
    for i, (request, answer) in enumerate(zip(requests, runner.run(population, requests), strict=True)):
        if isinstance(answer, Exception):
            outcomes.append(_plain(answer))
        elif request.header.kind == "evaluate":  # numbers by name, no tensors
            outcomes.append(answer)
        else:
            outcomes.append(answer._replace(body=None, stack=0))
            bodies[i] = answer.body
    seconds = time.monotonic() - began + store.writing
    began = time.monotonic()
    message = channel.write((outcomes, seconds), [*bodies, *(store.kept.get(r.k) for r in requests)])
    store.writing = time.monotonic() - began
    channel.send(message)


def _plain(error: Exception) -> Exception:
    """An error that survives the way to another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return FedpersError(f"{type(error).__name__}: {error}")
    return error
