"""Finds the clients of a federation: asks every node, and again if its answer is lost or unusable."""

import logging
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from flwr.app import Message

from fedpers.deploy.answers import Refused, read_facts
from fedpers.deploy.ledger import Facts, Ledger
from fedpers.deploy.orders import Order
from fedpers.deploy.reply_inbox import ReplyInbox
from fedpers.flower.forms import Field
from fedpers.flower.messages import Header, seal

log = logging.getLogger("fedpers")
LOOK_S = 0.25  # that a look for answers may take
TIMES = 2  # that a node is asked
# Flower's codes of errors that the SuperLink makes up where no reply came: the message, its reply or its
# node is not there. Those that a client app sends have others.
GONE = (3, 4, 5)


class RollCall:
    """The nodes of a grid and the names of their clients.

    A node that stays without a good answer is left alone until it has been away and is back.
    """

    def __init__(self, grid: Any, ledger: Ledger, declared: Mapping[str, Field], patience_s: float) -> None:
        """`patience_s` is how long a run waits for clients; half of it an answer."""
        self.grid, self.ledger, self.declared, self.patience_s = grid, ledger, declared, patience_s
        self.facts: dict[str, Facts] = {}
        self.said: dict[str, dict[str, Any]] = {}  # name -> all that its device said
        self.faults: dict[str, str] = {}  # name -> why its node is not taken
        self._clients: dict[int, str] = {}  # node -> name, of all that ever answered well
        self._asked: dict[str, tuple[int, float]] = {}  # message id -> (node, sent at)
        self._times: Counter[int] = Counter()  # that a node was asked
        self._inbox = ReplyInbox(grid)
        self._strangers: set[int] = set()  # nodes that are ignored

    def addresses(self) -> dict[str, int]:
        """{name: node} of the connected clients; a client that was not seen before is asked who it is."""
        nodes = {n.node_id: n.name for n in self.grid.get_nodes()}
        self._forget(set(self._times) - nodes.keys())
        self._hear()
        now = time.monotonic()
        waiting = {node for node, sent in self._asked.values() if now - sent < self.patience_s / TIMES}
        for node in nodes.keys() - self._clients.keys() - waiting - self._strangers:
            if self._times[node] < TIMES:
                self._ask(node)
            elif node not in {n for n, _ in self._asked.values()}:  # a late answer still counts
                self._ignore(node, self.faults.get(self._name(node), "it did not say who it is"))
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

    def _forget(self, gone: set[int]) -> None:
        """Of nodes that are not connected: they are asked anew when they are back."""
        for node in gone - self._clients.keys():
            del self._times[node]
            self._strangers.discard(node)

    def _ignore(self, node: int, why: str) -> None:
        log.warning("%s is ignored: %s", self._called(node), why)
        self._strangers.add(node)
        self._clients.pop(node, None)

    def _called(self, node: int) -> str:
        """A node as a message names it: by its key's name, if it has one."""
        name = self._name(node)
        return f"node {node} ({name})" if name != str(node) else f"node {node}"

    def _name(self, node: int) -> str:
        return self._keys().get(node) or str(node)

    def _keys(self) -> dict[int, str]:
        return {n.node_id: n.name for n in self.grid.get_nodes() if n.public_key}

    def _ask(self, node: int) -> None:
        self._times[node] += 1
        order = Order(self.ledger.run, -1, self.ledger.recall(-1), self.patience_s)
        content = seal({**Header("query")._asdict(), **order.header()}, None)
        for number in self.grid.push_messages([Message(content, node, "query", ttl=self.patience_s)]):
            self._asked[number] = node, time.monotonic()

    def _hear(self) -> None:
        """Read the answers that have arrived."""
        keys = self._keys()
        for message in self._inbox.look(self._asked, LOOK_S):
            node, _ = self._asked.pop(message.metadata.reply_to_message_id)
            if is_gone(message):  # asked again when it is back
                self._times[node] -= 1
                continue
            try:
                said = read_facts(message, self.declared)
            except Refused as why:
                name = keys.get(node) or str(node)
                self.faults[name] = f"its answer to the roll call: {why}"
                log.warning("%s: %s", self._called(node), self.faults[name])
                continue
            self._clients[node] = name = keys.get(node) or said["client"]
            self.faults.pop(name, None)
            self.said[name] = said
            self.facts[name] = Facts.of(said)


def is_gone(message: Message) -> bool:
    """Whether it tells that there will be no reply, rather than being one."""
    return message.has_error() and message.error.code in GONE
