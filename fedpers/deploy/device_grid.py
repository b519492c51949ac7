"""The grid of real devices: it finds clients, sends orders with a deadline, and returns replies or reasons.

Clients are partitions 0..N-1 in the order of their names; a name belongs to the key that the SuperLink
knows it by. Without node authentication, which is for trials on one machine, a device names itself.
"""

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import Message
from flwr.serverapp import Grid

from fedpers.config.run_config import RunConfig
from fedpers.core.errors import FedpersError, ReplyError
from fedpers.core.pytree import leaves
from fedpers.core.serialization import leaf_bytes
from fedpers.deploy.answers import PendingOrder, Reader, Refused, facts_of
from fedpers.deploy.bundles import bundled
from fedpers.deploy.diary import Diary
from fedpers.deploy.ledger import Ledger
from fedpers.deploy.orders import Order
from fedpers.deploy.reply_inbox import ReplyInbox
from fedpers.deploy.roll_call import RollCall, is_gone
from fedpers.deploy.superlink import check_size
from fedpers.flower.messages import Answer, Header, Outcome, Request, readdressed, seal
from fedpers.flower.roster import Roster, Shifted
from fedpers.flower.transport import DirectGrid
from fedpers.flower.validation import Inspector

log = logging.getLogger("fedpers")
LOOK_S = 0.25  # between two looks for replies


@dataclass
class Watch:
    """One attempt of an exchange: its orders, the messages sent, faults and good replies."""

    orders: dict[int, Any]  # still without a good reply
    size: int = 0  # of a reply in bytes, about that of an order; 0 where it holds no model
    sent: dict[str, int] = field(default_factory=dict)  # message id -> client
    waiting: set[int] = field(default_factory=set)  # not connected yet
    faults: dict[int, str] = field(default_factory=dict)
    good: dict[int, Answer] = field(default_factory=dict)


class DeviceGrid(DirectGrid):
    """The clients of a run behind Flower's own grid; one exchange at a time."""

    def __init__(self, grid: Grid, cfg: RunConfig, ledger: Ledger, device: str) -> None:
        self.grid, self.terms, self.ledger, self.strict = grid, cfg.engine, ledger, cfg.failures == "raise"
        self.reader = Reader(cfg, device)
        self.counts: Counter[str] = Counter()
        self.diary = Diary(None)
        self._policies: dict[int, str] = {}  # client -> digest of the policy that its newest answer obeyed
        self.roll = RollCall(grid, ledger, facts_of(cfg), self.terms.deadline_s)

    # ---- who is there ---------------------------------------------------------------------------

    def assemble(self, wanted: int | None) -> None:
        """Call the roll until `wanted` clients (or engine.min_clients) have answered.

        Raises:
            FedpersError: fewer than engine.min_clients came within engine.deadline_s.
        """
        least = self.terms.min_clients
        until = time.monotonic() + self.terms.deadline_s
        while True:
            there = [n for n in self.roll.addresses() if not self.ledger.names or n in self.ledger.names]
            if len(there) >= max(wanted or least, least):
                break
            if time.monotonic() > until:
                if len(there) >= least:
                    break
                raise FedpersError(self._too_few(there, least))
            time.sleep(LOOK_S)
        if not self.ledger.names:
            self.ledger.enrol({n: self.roll.facts[n] for n in there})
        self.diary.begin({n: self.roll.said.get(n, {}) for n in self.ledger.names})
        log.info("%d clients: %s", len(self.ledger.names), ", ".join(self.ledger.names))

    def _too_few(self, there: Sequence[str], least: int) -> str:
        faults = "".join(f"; {name}: {why}" for name, why in sorted(self.roll.faults.items()))
        return (
            f"only {len(there)} of at least {least} clients came within {self.terms.deadline_s:.0f} s "
            f"({', '.join(sorted(there)) or 'none'}){faults}; "
            "engine.min_clients and engine.deadline_s say how many and how long"
        )

    def roster(self, needs: Sequence[str]) -> tuple[Mapping[int, int], Roster]:
        """Who is in the run; to the strategy a client's node is its partition."""
        facts, count = self.ledger.facts, len(self.ledger.names)
        if "label_counts" in needs and self.ledger.untold:
            raise FedpersError(
                f"the policies of {', '.join(self.ledger.untold)} keep label_counts, which "
                "this method needs; choose another method, or ask the owners to add it to may_tell"
            )
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
        size = max(leaf_bytes(leaves(order)) for order in {id(o): o for o in orders.values()}.values())
        check_size(size)
        self.reader.rehearse(orders.values(), header)
        watch, inspector = Watch(dict(orders), size if header.kind == "train" else 0), Inspector()
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
        """Send the orders without a good reply; take replies until all are there or the deadline is over."""
        until = time.monotonic() + self.terms.deadline_s
        watch.sent, watch.waiting = {}, set(watch.orders)
        watch.faults = {}
        replies = ReplyInbox(self.grid, watch.size)
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
        there = self.roll.addresses()
        ready = [k for k in sorted(watch.waiting) if self.ledger.names[k] in there]
        body, sealed = None, None
        for k in ready:  # one by one: a request has a largest size, and a model is to be in memory once
            if sealed is None or watch.orders[k] is not body:
                body = watch.orders[k]
                sealed = bundled(seal(header._asdict(), body))
            order = Order(self.ledger.run, k, self.ledger.recall(k), left, self.ledger.pipeline)
            content, node = readdressed(sealed, order.header()), there[self.ledger.names[k]]
            message = Message(content, node, header.kind, ttl=left, group_id=str(header.t))
            for number in self.grid.push_messages([message]):
                watch.sent[number] = k
                watch.waiting.discard(k)

    def _judge(self, watch: Watch, k: int, message: Message, header: Header, inspector: Inspector) -> None:
        """Take a reply, or note what is wrong with it; only what is taken moves the client's version."""
        ledger = self.ledger
        asked = PendingOrder(watch.orders[k], header, ledger.facts[k], ledger.recall(k), len(ledger.names))
        try:
            taken = self.reader.read(message, asked, inspector)
        except Exception as error:  # nothing that a client sends ends the run
            fault = str(error) if isinstance(error, Refused) else f"its answer cannot be read: {error!r}"
            self.counts["late" if is_gone(message) else "refused"] += 1
            watch.faults[k] = fault
            return
        if header.kind == "train" and taken.version is not None:
            ledger.take(k, taken.version)
        self.counts["reinitialised"] += taken.reinitialised
        self._policies[k] = taken.policy
        watch.good[k] = taken.answer
        watch.faults.pop(k, None)
        del watch.orders[k]

    def _tell(self, header: Header, watch: Watch, asked: int, seconds: float) -> None:
        self.counts["asked"] += asked
        self.counts["answered"] += len(watch.good)
        text = "round %d, %s %d: %d of %d clients answered in %.1f s %s"
        good, faults = len(watch.good), _reasons(watch, self.ledger.names)
        about = {"round": header.t, "kind": header.kind, "exchange": header.e, "asked": asked}
        about |= {"answered": good, "seconds": round(seconds, 3), "faults": faults}
        self._note(header, watch)
        log.info(text, header.t, header.kind, header.e, good, asked, seconds, faults, extra=about)

    def _note(self, header: Header, watch: Watch) -> None:
        """A line of the diary."""
        names = self.ledger.names
        self.diary.note(
            {
                "round": header.t,
                "kind": header.kind,
                "exchange": header.e,
                "answered": [names[k] for k in sorted(watch.good)],
                "missing": {names[k]: watch.faults.get(k, "no reply") for k in sorted(watch.orders)},
                "policies": {names[k]: self._policies[k] for k in watch.good if k in self._policies},
            }
        )

    def take_counts(self) -> dict[str, int]:
        """{name: count} of messages sent, answered, late, refused and so on since the last call."""
        names = ("asked", "answered", "late", "refused", "retried", "reinitialised")
        found = {name: self.counts[name] for name in names}
        self.counts.clear()
        return found


def _shortage(header: Header, watch: Watch, names: Sequence[str], asked: int, quorum: int) -> str:
    reasons, good = _reasons(watch, names), len(watch.good)
    return f"round {header.t}: {good} of {asked} clients answered, {quorum} are needed ({reasons})"


def _reasons(watch: Watch, names: Sequence[str]) -> str:
    return "; ".join(f"{names[k]}: {watch.faults.get(k, 'no reply')}" for k in sorted(watch.orders))
