"""Orders out, replies in: messages between a strategy and its clients, counted and checked."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from fedpers.core.errors import ReplyError
from fedpers.core.plan import Plan
from fedpers.core.serialization import num_bytes
from fedpers.flower.messages import Assessed, Envelope, Exchange, open_content, seal
from fedpers.flower.observer import RoundLog
from fedpers.flower.roster import inverse
from fedpers.flower.validation import Inspector

log = logging.getLogger("fedpers")

Orders = dict[int, Any]  # partition id -> order
Replies = dict[int, Any]  # partition id -> reply, sorted by partition id


class Transport:
    """Knows the addresses of a grid's clients and what is on its way to them."""

    def __init__(self, grid: Grid, plan: Plan, node_of: Mapping[int, int]) -> None:
        self.grid, self.plan, self.node_of = grid, plan, node_of
        self.client_of = inverse(node_of)
        self.orders: Orders = {}
        self.assessed: dict[int, dict[str, float]] = {}
        self.timeout: float = 3600
        self._kind = "train"
        # What stays in this process is not packed.
        self._wrap = Envelope if hasattr(grid, "roster") else seal

    def address(self, header: dict[str, Any], orders: Orders, log: RoundLog) -> Sequence[Message]:
        """Messages for the orders; what they cost on a network is counted."""
        self.orders, self._kind = orders, header["kind"]
        if self._kind == "train":
            times = Counter(map(id, orders.values()))
            one_of = {id(order): order for order in orders.values()}
            log.bytes_down += sum(n * num_bytes(one_of[i]) for i, n in times.items())
        parts = [(self.node_of[k], order) for k, order in orders.items()]
        kind, wrap = self._kind, self._wrap

        def make() -> list[Message]:
            return [Message(wrap(header, order), node, kind) for node, order in parts]

        return Exchange(header, parts, make) if wrap is Envelope else make()

    def send(self, messages: Sequence[Message]) -> Iterable[Message]:
        """The replies to messages."""
        return self.grid.send_and_receive(messages, timeout=self.timeout) if messages else []

    def open(self, t: int, messages: Iterable[Message], log: RoundLog) -> Replies:
        """{client: reply} in the order of partition ids; failures raise, or are counted.

        Raises:
            ReplyError: a client failed or its reply is unfit (plan.failures="raise"), or all did.
        """
        replies: Replies = {}
        inspector = Inspector()
        missing = dict.fromkeys(self.orders, "no reply")
        for node, error, header, body in self._read(messages):
            k = self.client_of.get(node)
            if k is None:  # e.g. Flower's notice of a lost node comes from elsewhere
                continue
            if error is not None:
                missing[k] = error
                continue
            if self._kind == "train":
                body = self._without_metrics(k, body)
                fault, size = inspector.look(self.orders[k], body)
                if fault is not None:
                    missing[k] = fault
                    continue
                log.gradient_evals += int(header["work"])
                log.bytes_up += size
            replies[k] = body
            del missing[k]
        if missing:
            self._report(t, missing, bool(replies), log)
        return dict(sorted(replies.items()))

    def _read(self, messages: Iterable[Message]) -> Iterable[tuple[int, str | None, Any, Any]]:
        """(node, error, header, body) of each message."""
        if isinstance(messages, Exchange) and messages.sealed:
            yield from messages.parts
            return
        for message in messages:
            node = message.metadata.src_node_id
            if message.has_error():
                yield node, str(message.error.reason), None, None
            else:
                yield node, None, *open_content(message.content, self.plan.device)

    def _without_metrics(self, k: int, body: Any) -> Any:
        if isinstance(body, Assessed):
            self.assessed[k] = body.metrics
            return body.reply
        return body

    def _report(self, t: int, missing: dict[int, str], some: bool, counts: RoundLog) -> None:
        k, reason = min(missing.items())
        text = f"client {k} failed in round {t}: {reason}"
        if self.plan.failures == "raise" or not some:
            more = f" ({len(missing)} clients failed)" if len(missing) > 1 else ""
            raise ReplyError(text + more)
        log.warning("%s; going on without it (%d failed)", text, len(missing))
        counts.failures += len(missing)
