"""Clients on Ray through Flower's simulation engine: a message holds the requests of many clients.

Flower gives an actor one message at a time, so one client a message would leave actors waiting. A node
is a worker here: every actor holds all data, so any node can serve any client.
"""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedpers.core.data import Federation
from fedpers.core.serialization import num_bytes, pack, stack_equals, unpack, unstack
from fedpers.engines.inprocess_grid import InProcessGrid
from fedpers.engines.workers import balance
from fedpers.flower.messages import (
    SKELETON,
    Answer,
    Header,
    Outcome,
    Request,
    open_arrays,
    outcome,
    seal_arrays,
)

WHICH = "which"  # entry of a bundle's ConfigRecord: the block of each array
BUNDLE = "train.bundle"  # the type of these messages
BUNDLE_BYTES = 64 * 2**20  # of a bundle's answers, if they are as large as its orders
PAUSE = 0.01  # seconds between two looks for replies
NO_REPLY = "no reply"


class RayCohort:
    """The part of a `Cohort` that a grid uses, for clients in other processes: sends requests in bundles."""

    def __init__(
        self,
        grid: Grid,
        nodes: Sequence[int],
        actors: int,
        federation: Federation,
        device: str,
        chunk: int | None = None,
    ) -> None:
        self.grid, self.nodes, self.actors, self.chunk = grid, nodes, actors, chunk
        self.federation, self.device = federation, device
        self.timeout: float | None = None

    def handle(self, requests: Sequence[Request]) -> list[Outcome]:
        """The outcomes, in the order of the requests."""
        shares = self._shares(requests)
        outcomes: list[Outcome] = [NO_REPLY] * len(requests)
        messages = [
            Message(
                seal_requests([requests[i] for i in share]),
                self.nodes[number % len(self.nodes)],
                BUNDLE,
                group_id=str(number),
            )
            for number, share in enumerate(shares)
        ]
        for reply in self._replies(messages):
            share = shares[int(reply.metadata.group_id)]
            for i, found in zip(share, self._opened(reply, len(share)), strict=True):
                outcomes[i] = found
        return outcomes

    def _shares(self, requests: Sequence[Request]) -> list[list[int]]:
        """As many bundles as actors, of equal work; more where their answers would be too large.

        With `chunk`, as many as it takes for that number of clients a bundle.
        """
        largest = max(num_bytes(order) for order in {id(r.order): r.order for r in requests}.values())
        count = max(self.actors, math.ceil(len(requests) * largest / BUNDLE_BYTES))
        if self.chunk:
            count = max(count, math.ceil(len(requests) / self.chunk))
        weights = [float(self.federation.num_train[r.k]) for r in requests]
        return [share for share in balance(weights, min(count, len(requests))) if share]

    def _replies(self, messages: Sequence[Message]) -> Iterator[Message]:
        """Replies as they arrive; Flower's `send_and_receive` polls at 10 Hz and waits for all."""
        waiting = set(self.grid.push_messages(messages))
        began = time.monotonic()
        while waiting and (self.timeout is None or time.monotonic() - began < self.timeout):
            for reply in self.grid.pull_messages(waiting):
                waiting.discard(reply.metadata.reply_to_message_id)
                yield reply
            time.sleep(PAUSE)

    def _opened(self, reply: Message, count: int) -> Iterable[Outcome]:
        if reply.has_error():
            return [str(reply.error.reason)] * count
        return open_answers(reply.content, self.device)


class RayGrid(InProcessGrid):
    """All clients of a federation as nodes of one grid, on top of a grid with a few nodes."""

    cohort: RayCohort  # type: ignore[assignment]

    def __init__(self, fleet: RayCohort) -> None:
        super().__init__(fleet)  # type: ignore[arg-type]

    def answer(self, requests: Sequence[Request], timeout: float | None = None) -> list[Outcome]:
        """The outcomes, in the order of the requests; "no reply" after `timeout` seconds."""
        self.cohort.timeout = timeout
        return super().answer(requests)


# ---- what is in a bundle -----------------------------------------------------------------------


def seal_requests(requests: Sequence[Request]) -> RecordDict:
    """Requests as the content of a message; an order that many clients get is in it once."""
    distinct = {(id(r.header), id(r.order)): (r.header, r.order) for r in requests}
    place = {key: i for i, key in enumerate(distinct)}
    seats = torch.tensor([(r.k, place[id(r.header), id(r.order)]) for r in requests])
    return seal_many((tuple(distinct.values()), seats))


def open_requests(content: RecordDict, device: str) -> list[Request]:
    """The requests of a sealed bundle."""
    distinct, seats = open_many(content, device)
    pairs = [(order, Header(*header)) for header, order in distinct]
    return [Request(k, *pairs[i]) for k, i in seats.tolist()]


def seal_answers(answers: Sequence[Answer | Exception]) -> RecordDict:
    """Answers as the content of a message; of a failure its text."""
    return seal_many(tuple(map(outcome, answers)))


def open_answers(content: RecordDict, device: str) -> Iterator[Outcome]:
    """What `seal_answers` was given."""
    return (t if isinstance(t, str) else Answer(*t) for t in open_many(content, device))


def seal_many(body: Any) -> RecordDict:
    """The packed form of a body with many tensors of few shapes: one array a shape."""
    skeleton, arrays = pack(body)
    blocks, which = stack_equals(arrays)
    return seal_arrays(blocks, {SKELETON: skeleton, WHICH: which})


def open_many(content: RecordDict, device: str = "cpu") -> Any:
    """What `seal_many` was given; a tensor that was in it several times is one object again."""
    blocks, config = open_arrays(content)
    return unpack(str(config[SKELETON]), unstack(blocks, config[WHICH], device))
