"""A simulation's clients behind Flower's nodes: a bundle of clients a message, a message an actor call.

Flower's engine hands an actor one message at a time, so a message has to be for many clients. Its
nodes are then no clients but hands: any of them serves any client, since every actor has the data.
"""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedpers.core.data import Federation
from fedpers.core.serialization import num_bytes
from fedpers.engines.inprocess_grid import InProcessGrid
from fedpers.engines.workers import balance
from fedpers.flower.messages import Answer, Request, open_many, seal_many

BUNDLE = "train.bundle"  # the type of these messages
BUNDLE_BYTES = 64 * 2**20  # of a bundle's answers, if they are as large as its orders
PAUSE = 0.01  # seconds between two looks for replies
NO_REPLY = "no reply"
Outcome = Answer | str  # what a client answered, or why it did not


class RayCohort:
    """Stands for a `Cohort` where the clients are elsewhere: hands requests to nodes, in bundles."""

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
            for i, outcome in zip(share, self._opened(reply, len(share)), strict=True):
                outcomes[i] = outcome
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
        """As they come: Flower's own `send_and_receive` looks ten times a second, for all of them."""
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
    """A grid whose nodes are all clients of a federation, on top of one with some nodes."""

    cohort: RayCohort  # type: ignore[assignment]

    def __init__(self, fleet: RayCohort) -> None:
        super().__init__(fleet)  # type: ignore[arg-type]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Sequence[Message]:
        """Deliver messages and return their replies."""
        self.cohort.timeout = timeout
        return super().send_and_receive(messages)


# ---- what is in a bundle -----------------------------------------------------------------------


def seal_requests(requests: Sequence[Request]) -> RecordDict:
    """Requests as the content of a message; an order that many clients get is in it once."""
    distinct: dict[tuple[int, int], Any] = {}
    for r in requests:
        distinct.setdefault((id(r.header), id(r.order)), (r.header, r.order))
    place = {key: i for i, key in enumerate(distinct)}
    seats = torch.tensor([(r.k, place[id(r.header), id(r.order)]) for r in requests])
    return seal_many((tuple(distinct.values()), seats))


def open_requests(content: RecordDict, device: str) -> list[Request]:
    """The requests of a sealed bundle."""
    distinct, seats = open_many(content, device)
    return [Request(k, distinct[i][1], distinct[i][0]) for k, i in seats.tolist()]


def seal_answers(answers: Sequence[Answer | Exception]) -> RecordDict:
    """Answers as the content of a message; of a failure its text."""
    return seal_many(tuple(map(_told, answers)))


def open_answers(content: RecordDict, device: str) -> Iterator[Outcome]:
    """What `seal_answers` was given."""
    return (t if isinstance(t, str) else Answer(*t) for t in open_many(content, device))


def _told(answer: Answer | Exception) -> Any:
    if isinstance(answer, Exception):
        return f"{type(answer).__name__}: {answer}"
    return answer.body, answer.num_examples, answer.work
