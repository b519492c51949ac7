"""Clients on Ray through Flower's simulation engine: a message holds the requests of many clients.

Flower gives an actor one message at a time, so one client a message would leave actors waiting. A node
is a worker here: every actor holds all data, and clients' states stay with the server and travel with
the requests. So any node of any machine can serve any client, and one that dies takes nothing along.
"""

import itertools
import logging
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedpers.core.data import Federation
from fedpers.core.pytree import own_leaves
from fedpers.core.serialization import num_bytes, pack, stack_equals, unpack, unstack
from fedpers.engines.cohort import Cohort
from fedpers.engines.dealing import balance
from fedpers.engines.inprocess_grid import InProcessGrid
from fedpers.engines.memory.client_store import ClientStore
from fedpers.engines.workers import TransientStore
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

log = logging.getLogger("fedpers")
WHICH = "which"  # entry of a bundle's ConfigRecord: the block of each array
BUNDLE = "train.bundle"  # the type of these messages
BUNDLE_BYTES = 64 * 2**20  # of a bundle's answers, if they are as large as its orders
PAUSE = 0.01  # seconds between two looks for replies
NO_REPLY = "no reply"
RESENT, AGAIN_S = 10, 1.0  # times that a bundle whose actor died is sent again, seconds in between
DIED = re.compile(r"ray\.exceptions\.(ActorDied|ActorUnavailable|NodeDied|WorkerCrashed|RayActor|ObjectLost)")


class RayCohort:
    """The part of a `Cohort` that a grid uses, for clients in other processes: sends requests in bundles."""

    def __init__(
        self,
        grid: Grid,
        nodes: Sequence[int],
        actors: int,
        federation: Federation,
        store: ClientStore,
        device: str,
        chunk: int | None = None,
    ) -> None:
        self.grid, self.nodes, self.actors, self.chunk = grid, nodes, actors, chunk
        self.federation, self.store, self.device = federation, store, device
        self.timeout: float | None = None

    def handle(self, requests: Sequence[Request]) -> list[Outcome]:
        """The outcomes, in the order of the requests; what clients remember is kept here.

        A bundle whose actor died is sent again: its clients' states are those from before.
        """
        states = self.store.get_all([(r.k, r.when) for r in requests])
        shares = dict(enumerate(self._shares(requests, states)))
        outcomes: list[Outcome] = [NO_REPLY] * len(requests)
        until, copies = math.inf if self.timeout is None else time.monotonic() + self.timeout, 1
        for _ in range(1 + RESENT):
            bundles = {n: seal_requests(*_picked(share, requests, states)) for n, share in shares.items()}
            for number, reply in self._replies(bundles, copies, until):
                self._take(requests, shares.pop(number), reply, outcomes)
            if not shares or time.monotonic() > until:
                break
            log.warning("actors of Ray died; %d bundles of clients are sent again", len(shares))
            time.sleep(AGAIN_S)
            copies = self.actors  # Flower hands messages to dead actors too, so one may not be enough
        return outcomes

    def _take(
        self, requests: Sequence[Request], share: list[int], reply: Message, outcomes: list[Outcome]
    ) -> None:
        """Store the outcomes of one bundle, and the new states of clients that succeeded."""
        if reply.has_error():
            outcomes_here: Sequence[tuple[Outcome, Any]] = [(str(reply.error.reason), None)] * len(share)
        else:
            outcomes_here = open_answers(reply.content, self.device)
        for i, (found, kept) in zip(share, outcomes_here, strict=True):
            outcomes[i] = found
            if kept is not None and isinstance(found, Answer):
                self.store.put(requests[i].k, requests[i].when, own_leaves(kept))

    def _shares(self, requests: Sequence[Request], states: Sequence[Any]) -> list[list[int]]:
        """As many bundles as actors, of equal work; more where their answers would be too large.

        With `chunk`, as many as it takes for that number of clients a bundle.
        """
        largest = max(num_bytes(order) for order in {id(r.order): r.order for r in requests}.values())
        largest += max(map(num_bytes, states))
        count = max(self.actors, math.ceil(len(requests) * largest / BUNDLE_BYTES))
        if self.chunk:
            count = max(count, math.ceil(len(requests) / self.chunk))
        weights = [float(self.federation.num_train[r.k]) for r in requests]
        return [share for share in balance(weights, [1.0] * min(count, len(requests))) if share]

    def _replies(
        self, bundles: Mapping[int, RecordDict], copies: int, until: float
    ) -> Iterator[tuple[int, Message]]:
        """(bundle, reply) as they arrive, each bundle once, and none from an actor that died.

        Flower's `send_and_receive` polls at 10 Hz and waits for all.
        """
        places, missing = itertools.cycle(self.nodes), set(bundles)
        waiting = set(
            self.grid.push_messages(
                Message(content, next(places), BUNDLE, group_id=str(number))
                for number, content in bundles.items()
                for _ in range(copies)
            )
        )
        while missing and waiting and time.monotonic() < until:
            for reply in self.grid.pull_messages(waiting):
                waiting.discard(reply.metadata.reply_to_message_id)
                number = int(reply.metadata.group_id)
                if number in missing and not _died(reply):
                    missing.discard(number)
                    yield number, reply
            time.sleep(PAUSE)


def _picked(share: list[int], *lists: Sequence[Any]) -> Iterator[list[Any]]:
    return ([values[i] for i in share] for values in lists)


def _died(reply: Message) -> bool:
    """Whether there is an error because the process or the machine is gone that had the bundle."""
    return reply.has_error() and DIED.search(str(reply.error.reason)) is not None


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


def serve(cohort: Cohort, content: RecordDict) -> RecordDict:
    """An actor's answer to a bundle; nothing of it stays with the actor."""
    requests, states = open_requests(content, cohort.device)
    for request in requests[:1]:
        cohort.client.model.check_base(request.header.base)
    cohort.store = store = TransientStore()
    store.given = {r.k: state for r, state in zip(requests, states, strict=True)}
    answers = cohort.handle(requests)
    return seal_answers(answers, [store.kept.get(r.k) for r in requests])


def seal_requests(requests: Sequence[Request], states: Sequence[Any]) -> RecordDict:
    """Requests and their clients' states as a message's content; an order that many get is in it once."""
    distinct = {(id(r.header), id(r.order)): (r.header, r.order) for r in requests}
    place = {key: i for i, key in enumerate(distinct)}
    seats = torch.tensor([(r.k, place[id(r.header), id(r.order)]) for r in requests])
    return seal_many((tuple(distinct.values()), seats, tuple(states)))


def open_requests(content: RecordDict, device: str) -> tuple[list[Request], tuple[Any, ...]]:
    """The requests and states of a sealed bundle."""
    distinct, seats, states = open_many(content, device)
    pairs = [(order, Header(*header)) for header, order in distinct]
    return [Request(k, *pairs[i]) for k, i in seats.tolist()], states


def seal_answers(answers: Sequence[Answer | Exception], kept: Sequence[Any]) -> RecordDict:
    """Answers, of a failure its text, and clients' new states (None: as before) as a message's content."""
    return seal_many((tuple(map(outcome, answers)), tuple(kept)))


def open_answers(content: RecordDict, device: str) -> list[tuple[Outcome, Any]]:
    """(outcome, new state or None) a client, of what `seal_answers` was given; stacks were the sender's."""
    answers, kept = open_many(content, device)
    found = [a if isinstance(a, str) else Answer(*a)._replace(stack=0) for a in answers]
    return list(zip(found, kept, strict=True))


def seal_many(body: Any) -> RecordDict:
    """The packed form of a body with many tensors of few shapes: one array a shape."""
    skeleton, arrays = pack(body)
    blocks, which = stack_equals(arrays)
    return seal_arrays(blocks, {SKELETON: skeleton, WHICH: which})


def open_many(content: RecordDict, device: str = "cpu") -> Any:
    """What `seal_many` was given; a tensor that was in it several times is one object again."""
    blocks, config = open_arrays(content)
    return unpack(str(config[SKELETON]), unstack(blocks, config[WHICH], device))
