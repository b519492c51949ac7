"""Orders to clients and replies from them, by partition id: over Flower's messages, or within one process."""

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from fedpers.core.errors import ReplyError
from fedpers.core.plan import Plan
from fedpers.core.pytree import flatten
from fedpers.core.serialization import leaf_bytes
from fedpers.core.work import Work
from fedpers.flower.clock import Clock, Effort
from fedpers.flower.forms import unfit_columns
from fedpers.flower.internals import number
from fedpers.flower.messages import (
    Answer,
    Assessed,
    Exchange,
    Header,
    Outcome,
    Request,
    open_reply,
    reply_message,
    request_messages,
)
from fedpers.flower.observer import RoundLog
from fedpers.flower.roster import Roster, ask_roster
from fedpers.flower.validation import Inspector

log = logging.getLogger("fedpers")

Orders = dict[int, Any]  # partition id -> order
Replies = dict[int, Any]  # partition id -> reply, sorted by partition id


class DirectGrid(ABC):
    """A grid that takes requests by partition id, without messages."""

    @abstractmethod
    def roster(self, needs: Sequence[str]) -> tuple[Mapping[int, int], Roster]:
        """({partition id: node id}, all clients with the properties that the strategy `needs`)."""

    @abstractmethod
    def answer(self, requests: Sequence[Request], timeout: float | None = None) -> list[Outcome]:
        """The outcomes, in the order of the requests, within `timeout` seconds."""


class Transport:
    """Exchanges over any Flower grid, one message a client; counts bytes and checks replies."""

    foreign = True  # replies come from elsewhere, so that evaluations are checked too

    def __init__(self, grid: Any, plan: Plan, nodes: Mapping[int, int]) -> None:
        self.grid, self.plan = grid, plan
        self.nodes = nodes  # partition id -> node id
        self.orders: Orders = {}  # of the current exchange
        self.assessed: dict[int, dict[str, float]] = {}  # partition id -> columns of `assess`
        self.timeout: float = 3600  # seconds
        self.clock: Clock | None = None  # of simulated devices
        self.most = 0  # replies that are taken of an exchange; 0: all
        self._down: dict[int, int] = {}  # bytes of each client's order
        self._kind, self._when = "train", (0, 0)

    def address(self, header: Header, orders: Orders, counts: RoundLog) -> Sequence[Message]:
        """Messages for the orders; the bytes that they have on a network are added to `counts`."""
        self.orders, self._kind, self._when = orders, header.kind, (header.t, header.e)
        trees = {}
        if header.kind == "train":
            times = Counter(map(id, orders.values()))
            one_of = {id(order): order for order in orders.values()}
            trees = {i: flatten(order) for i, order in one_of.items()}
            sizes = {i: leaf_bytes(tree[0]) for i, tree in trees.items()}
            counts.bytes_down += sum(n * sizes[i] for i, n in times.items())
            self._down = {k: sizes[id(order)] for k, order in orders.items()} if self.clock else {}
            if self.plan.privacy.on:
                counts.releases += orders
        told = self._told(header, orders, counts)
        requests = [Request(k, order, told[k], trees.get(id(order))) for k, order in orders.items()]
        return self._messages(requests)

    def _told(self, header: Header, orders: Orders, counts: RoundLog) -> Mapping[int, Header]:
        """Each client's header: who would be late is told to train for less, if the run asks for that."""
        clock = self.clock
        if clock is None or header.kind != "train" or not clock.systems.config.partial:
            return dict.fromkeys(orders, header)
        passes = clock.passes(orders, self._down)
        counts.extra["partial"] = counts.extra.get("partial", 0.0) + sum(m > 0 for m in passes.values())
        each = {m: header._replace(passes=m) for m in set(passes.values())}
        return {k: each[m] for k, m in passes.items()}

    def send(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The replies to messages."""
        return self.grid.send_and_receive(messages, timeout=self.timeout) if messages else []

    def open(self, t: int, messages: Iterable[Message], counts: RoundLog) -> Replies:
        """{client: reply} in the order of partition ids; failures raise, or are added to `counts`.

        Raises:
            ReplyError: a client failed or its reply is unfit (plan.failures="raise"), or all did.
        """
        replies: Replies = {}
        efforts: dict[int, Effort] = {}
        inspector = Inspector()
        missing = dict.fromkeys(self.orders, "no reply")
        for k, found in self._outcomes(messages):
            if isinstance(found, str):
                missing[k] = found
                continue
            body, fault, size = self._looked_at(k, found, inspector)
            if fault is not None:
                missing[k] = fault
                continue
            if self._kind == "train":
                counts.gradient_evals += found.work
                counts.body_forwards += found.work + found.forwards
                counts.head_steps += found.head_steps
                counts.bytes_up += size
                if self.clock is not None:
                    work = Work(found.work, found.forwards, found.head_steps)
                    efforts[k] = Effort(self._down[k], size, self.clock.operations(work))
            replies[k] = body
            del missing[k]
        if missing:
            self._report(t, missing, bool(replies), counts)
        if self.clock is not None and efforts:
            self._let_pass(self.clock, efforts, replies, counts)
        return dict(sorted(replies.items()))

    def _let_pass(
        self, clock: Clock, efforts: Mapping[int, Effort], replies: Replies, counts: RoundLog
    ) -> None:
        """Let simulated time pass, and leave out the replies that came too late."""
        began = clock.now
        late = clock.pass_by(efforts, self.most or len(efforts), self._when)
        for k in late:
            del replies[k]
        for name, value in (("virtual_seconds", clock.now - began), ("late", len(late))):
            counts.extra[name] = counts.extra.get(name, 0.0) + value

    def _looked_at(self, k: int, found: Answer, inspector: Inspector) -> tuple[Any, str | None, int]:
        """(reply, what is wrong with it or None, its bytes); columns that came with it are kept apart."""
        body, columns, fault, size = found.body, found.body, None, 0
        if self._kind == "train":
            body, columns = (body.reply, body.metrics) if isinstance(body, Assessed) else (body, None)
            fault, size = inspector.look(self.orders[k], body, found.stack)
        if fault is None and columns is not None and self.foreign:
            fault = unfit_columns(columns)
        if fault is None and columns is not None and self._kind == "train":
            self.assessed[k] = columns
        return body, fault, size

    def _messages(self, requests: Sequence[Request]) -> Sequence[Message]:
        return request_messages(requests, self.nodes)

    def _outcomes(self, messages: Iterable[Message]) -> Iterable[tuple[int, Outcome]]:
        """(partition id, outcome) of each reply; Flower's notices of other nodes are left out."""
        for message in messages:
            if (k := self._clients.get(message.metadata.src_node_id)) is not None:
                yield k, open_reply(message, self.plan.device)

    @cached_property
    def _clients(self) -> dict[int, int]:
        """{node id: partition id}."""
        return {node: k for k, node in self.nodes.items()}

    def _report(self, t: int, missing: dict[int, str], some: bool, counts: RoundLog) -> None:
        k, reason = min(missing.items())
        text = f"client {k} failed in round {t}: {reason}"
        if self.plan.failures == "raise" or not some:
            more = f" ({len(missing)} clients failed)" if len(missing) > 1 else ""
            raise ReplyError(text + more)
        log.warning("%s; going on without it (%d failed)", text, len(missing))
        counts.failures += len(missing)


class InProcessTransport(Transport):
    """Exchanges with a `DirectGrid`: requests by partition id; messages only if somebody reads them."""

    foreign = False  # they are of this process and its workers, or were checked where they came in

    def send(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The replies to messages."""
        if not (messages and isinstance(messages, Exchange) and messages.unread):
            return super().send(messages)
        requests = messages.parts
        outcomes = self.grid.answer(requests, self.timeout)

        def make() -> list[Message]:
            pairs = zip(number(messages), outcomes, strict=True)
            return number([reply_message(message, found) for message, found in pairs])

        return Exchange([(r.k, found) for r, found in zip(requests, outcomes, strict=True)], make)

    def _messages(self, requests: Sequence[Request]) -> Sequence[Message]:
        return Exchange(requests, lambda: request_messages(requests, self.nodes))

    def _outcomes(self, messages: Iterable[Message]) -> Iterable[tuple[int, Outcome]]:
        if isinstance(messages, Exchange) and messages.unread:
            return messages.parts
        return super()._outcomes(messages)


def connect(grid: Grid, plan: Plan, needs: Sequence[str]) -> tuple[Transport, Roster]:
    """(transport, clients with the properties that the strategy `needs`) of a grid; see `ask_roster`."""
    if isinstance(grid, DirectGrid):
        nodes, roster = grid.roster(needs)
        return InProcessTransport(grid, plan, nodes), roster
    nodes, roster = ask_roster(grid, needs, plan.num_clients)
    return Transport(grid, plan, nodes), roster
