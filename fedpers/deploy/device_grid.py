"""The grid of real devices: who is there, orders out with a deadline, replies in, or the reason why not.

Clients are partitions 0..N-1 in the order of their names; a name belongs to the key that the SuperLink
knows it by. Without node authentication, which is for trials on one machine, a device names itself.
"""

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from flwr.app import Message
from flwr.serverapp import Grid
from torch import Tensor

from fedpers.core.errors import FedpersError, ReplyError
from fedpers.core.pytree import leaves
from fedpers.deploy.ledger import Facts, Ledger
from fedpers.deploy.mailbox import Mailbox
from fedpers.deploy.orders import Order, version
from fedpers.flower.messages import Answer, Assessed, Header, Outcome, Request, costs_of, open_content, seal
from fedpers.flower.roster import Roster, Shifted
from fedpers.flower.transport import DirectGrid
from fedpers.flower.validation import Inspector

log = logging.getLogger("fedpers")
LOOK_S = 0.25  # between two looks for replies
# Flower's codes of errors that the SuperLink makes up where no reply came: the message, its reply or its
# node is not there. Those that a client app sends have others.
GONE = (3, 4, 5)


class Terms(Protocol):
    """What the engine's configuration says of rounds on devices."""

    @property
    def deadline_s(self) -> float:
        """Seconds for a reply, and for clients to come."""

    @property
    def min_replies(self) -> int | None:
        """Good replies that an exchange needs."""

    @property
    def min_clients(self) -> int:
        """Clients that a run needs."""

    @property
    def retries(self) -> int:
        """Times that an order is sent again."""


@dataclass
class Watch:
    """What is on its way in one attempt of an exchange."""

    orders: dict[int, Any]  # still without a good reply
    sent: dict[str, int] = field(default_factory=dict)  # message id -> client
    waiting: set[int] = field(default_factory=set)  # not connected yet
    faults: dict[int, str] = field(default_factory=dict)
    good: dict[int, Answer] = field(default_factory=dict)


class DeviceGrid(DirectGrid):
    """The clients of a run behind Flower's own grid; one exchange at a time."""

    def __init__(self, grid: Grid, terms: Terms, ledger: Ledger, device: str, strict: bool) -> None:
        self.grid, self.terms, self.ledger, self.device, self.strict = grid, terms, ledger, device, strict
        self.counts: Counter[str] = Counter()
        self._clients: dict[int, str] = {}  # node -> name, of all that ever answered the roll call
        self._facts: dict[str, Facts] = {}
        self._asked: dict[str, tuple[int, float]] = {}  # message id of a roll call -> (node, sent at)
        self._calls = Mailbox(grid)  # answers to the roll call
        self._strangers: set[int] = set()  # nodes that are ignored

    # ---- who is there ---------------------------------------------------------------------------

    def assemble(self, wanted: int | None) -> None:
        """Call the roll until `wanted` clients (or engine.min_clients) have answered.

        Raises:
            FedpersError: fewer than engine.min_clients came within engine.deadline_s.
        """
        least = self.terms.min_clients
        until = time.monotonic() + self.terms.deadline_s
        while True:
            there = [n for n in self._addresses() if not self.ledger.names or n in self.ledger.names]
            if len(there) >= max(wanted or least, least):
                break
            if time.monotonic() > until:
                if len(there) >= least:
                    break
                raise FedpersError(
                    f"only {len(there)} of at least {least} clients came within "
                    f"{self.terms.deadline_s:.0f} s ({', '.join(sorted(there)) or 'none'}); "
                    "engine.min_clients and engine.deadline_s say how many and how long"
                )
            time.sleep(LOOK_S)
        if not self.ledger.names:
            self.ledger.enrol({n: self._facts[n] for n in there})
        log.info("%d clients: %s", len(self.ledger.names), ", ".join(self.ledger.names))

    def _addresses(self) -> dict[str, int]:
        """{name: node} of the clients that are connected; newcomers are asked who they are."""
        nodes = {n.node_id: n for n in self.grid.get_nodes()}  # type: ignore[attr-defined]
        self._hear()
        waiting = {
            node for node, sent in self._asked.values() if time.monotonic() - sent < self.terms.deadline_s
        }
        for node in nodes.keys() - self._clients.keys() - waiting - self._strangers:
            self._ask(node)
        found: dict[str, int] = {}
        for node in sorted(nodes.keys() & self._clients.keys()):
            name = self._clients[node]
            if name in found:
                self._ignore(node, f"it says it is {name}, as another node does")
            elif self.ledger.names and name not in self.ledger.names:
                self._ignore(node, f"{name} came after the run began; it can join the next")
            else:
                found[name] = node
        return found

    def _ignore(self, node: int, why: str) -> None:
        log.warning("node %d is ignored: %s", node, why)
        self._strangers.add(node)
        self._clients.pop(node, None)

    def _ask(self, node: int) -> None:
        order = Order(self.ledger.run, -1, self.ledger.recall(-1), self.terms.deadline_s)
        content = seal({**Header("query")._asdict(), **order.header()}, None)
        for number in self.grid.push_messages([Message(content, node, "query", ttl=self.terms.deadline_s)]):
            self._asked[number] = node, time.monotonic()

    def _hear(self) -> None:
        """Take in what nodes have answered to the roll call."""
        keys = {n.node_id: n.name for n in self.grid.get_nodes() if n.public_key}  # type: ignore[attr-defined]
        for message in self._calls.look(self._asked, LOOK_S):
            node, _ = self._asked.pop(message.metadata.reply_to_message_id)
            if _is_gone(message):  # asked again when it is back
                continue
            if message.has_error():
                self._ignore(node, f"it did not say who it is: {message.error.reason}")
                continue
            try:
                said = message.content["config"]
                self._clients[node] = name = keys.get(node) or str(said["client"])  # type: ignore[index]
                self._facts[name] = _facts(said)
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                self._ignore(node, f"its answer to the roll call cannot be read: {error!r}")

    def roster(self, needs: Sequence[str]) -> tuple[Mapping[int, int], Roster]:
        """Who is in the run; to the strategy a client's node is its partition."""
        facts, count = self.ledger.facts, len(self.ledger.names)
        known = {"label_counts": torch.from_numpy(self.ledger.label_counts).double()}
        numbers = torch.tensor([float(f.num_train) for f in facts], dtype=torch.float64)
        return Shifted(0, count, 0), Roster(tuple(range(count)), numbers, {n: known[n] for n in needs})

    # ---- one exchange ---------------------------------------------------------------------------

    def answer(self, requests: Sequence[Request], timeout: float | None = None) -> list[Outcome]:
        """The outcomes of one exchange; of a client without a good reply, the reason.

        The time that they may take is engine.deadline_s, whatever `timeout` is.

        Raises:
            ReplyError: fewer good replies than engine.min_replies, after all retries.
        """
        began, header = time.monotonic(), requests[0].header
        orders = {r.k: r.order for r in requests}
        watch, inspector = Watch(dict(orders)), Inspector()
        quorum = min(len(orders), self.terms.min_replies or (len(orders) if self.strict else 1))
        for attempt in range(self.terms.retries + 1):
            self.counts["retried"] += len(watch.orders) if attempt else 0
            self._attempt(watch, header, inspector, quorum)
            if not watch.orders or (attempt and len(watch.good) >= quorum):
                break
        self._tell(header, watch, len(orders), time.monotonic() - began)
        if len(watch.good) < quorum:
            raise ReplyError(_shortage(header, watch, self.ledger.names, len(orders), quorum))
        return [watch.good.get(k) or watch.faults.get(k, "no reply") for k in orders]

    def _attempt(self, watch: Watch, header: Header, inspector: Inspector, quorum: int) -> None:
        """Send what has no good reply yet; take replies until all are in, or the deadline."""
        until = time.monotonic() + self.terms.deadline_s
        watch.sent, watch.waiting = {}, set(watch.orders)
        watch.faults = {}
        replies = Mailbox(self.grid)
        while time.monotonic() < until:
            self._dispatch(watch, header, until - time.monotonic())
            for message in replies.look(watch.sent, LOOK_S):
                k = watch.sent.pop(message.metadata.reply_to_message_id)
                self._judge(watch, k, message, header, inspector)
            if not watch.sent and (not watch.waiting or len(watch.good) >= quorum):
                break
            time.sleep(LOOK_S)
        watch.faults |= dict.fromkeys(watch.sent.values(), f"no reply within {self.terms.deadline_s:.0f} s")
        watch.faults |= dict.fromkeys(watch.waiting, "not connected")
        self.counts["late"] += len(watch.sent)

    def _dispatch(self, watch: Watch, header: Header, left: float) -> None:
        """Send the orders of those clients that are connected now."""
        if not watch.waiting:
            return
        there = self._addresses()
        ready = [k for k in sorted(watch.waiting) if self.ledger.names[k] in there]
        messages = []
        for k in ready:
            order = Order(self.ledger.run, k, self.ledger.recall(k), left)
            content = seal({**header._asdict(), **order.header()}, watch.orders[k])
            node = there[self.ledger.names[k]]
            messages.append(Message(content, node, header.kind, ttl=left, group_id=str(header.t)))
        for k, message in zip(ready, messages, strict=True):  # one by one: a request has a largest size
            for number in self.grid.push_messages([message]):
                watch.sent[number] = k
                watch.waiting.discard(k)

    def _judge(self, watch: Watch, k: int, message: Message, header: Header, inspector: Inspector) -> None:
        """Take a reply, or note what is wrong with it; only what is taken moves the client's version."""
        fault, said, body = self._opened(message)
        if fault is None and header.kind == "train":
            reply = body.reply if isinstance(body, Assessed) else body
            fault, _ = inspector.look(watch.orders[k], reply)
            if any(isinstance(x, Tensor) and x.is_complex() for x in leaves(reply)):
                fault = "its reply holds complex numbers"
        if fault is None and header.kind == "evaluate" and not _is_metrics(body):
            fault = "its evaluation is no table of numbers"
        if fault is not None:
            self.counts["late" if _is_gone(message) else "refused"] += 1
            watch.faults[k] = fault
            return
        if header.kind == "train" and said["version"] is not None:
            self.ledger.take(k, said["version"])
        self.counts["reinitialised"] += said["reinitialised"]
        watch.good[k] = Answer(body, said["num"], **costs_of(said))
        watch.faults.pop(k, None)
        del watch.orders[k]

    def _opened(self, message: Message) -> tuple[str | None, Any, Any]:
        """(what is wrong, header, body) of a reply; nothing that a client sends raises here."""
        if message.has_error():
            return str(message.error.reason), None, None
        try:
            said, body = open_content(message.content, self.device)
            said |= costs_of(said) | {"num": int(said["num"])}
            said |= {"version": version(said["version"]), "reinitialised": bool(said["reinitialised"])}
        except Exception as error:
            return f"its reply cannot be read: {type(error).__name__}: {error}", None, None
        return None, said, body

    def _tell(self, header: Header, watch: Watch, asked: int, seconds: float) -> None:
        self.counts["asked"] += asked
        self.counts["answered"] += len(watch.good)
        text = "round %d, %s %d: %d of %d clients answered in %.1f s %s"
        good, faults = len(watch.good), _reasons(watch, self.ledger.names)
        about = {"round": header.t, "kind": header.kind, "exchange": header.e, "asked": asked}
        about |= {"answered": good, "seconds": round(seconds, 3), "faults": faults}
        log.info(text, header.t, header.kind, header.e, good, asked, seconds, faults, extra=about)

    def take_counts(self) -> dict[str, int]:
        """What happened since the last call, by name."""
        names = ("asked", "answered", "late", "refused", "retried", "reinitialised")
        found = {name: self.counts[name] for name in names}
        self.counts.clear()
        return found


def _is_gone(message: Message) -> bool:
    """Whether it tells that there will be no reply, rather than being one."""
    return message.has_error() and message.error.code in GONE


def _facts(said: Any) -> Facts:
    counts = said["label_counts"]
    facts = Facts(int(said["num_train"]), int(said["num_test"]), tuple(int(n) for n in counts))
    if facts.num_train < 1 or facts.num_test < 0 or any(n < 0 for n in facts.label_counts):
        raise ValueError("it tells impossible numbers of samples")
    return facts


def _is_metrics(body: Any) -> bool:
    return isinstance(body, dict) and all(isinstance(v, int | float) for v in body.values())


def _shortage(header: Header, watch: Watch, names: Sequence[str], asked: int, quorum: int) -> str:
    reasons, good = _reasons(watch, names), len(watch.good)
    return f"round {header.t}: {good} of {asked} clients answered, {quorum} are needed ({reasons})"


def _reasons(watch: Watch, names: Sequence[str]) -> str:
    return "; ".join(f"{names[k]}: {watch.faults.get(k, 'no reply')}" for k in sorted(watch.orders))
