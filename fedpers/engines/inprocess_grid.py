"""Flower grids within one process: no Ray, no network; all messages of an exchange arrive at once."""

import logging
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from fedpers.core.arrays import doubles
from fedpers.engines.cohort import Cohort
from fedpers.flower.internals import begin_run, number
from fedpers.flower.messages import Header, Outcome, Request, open_content, outcome, reply_message
from fedpers.flower.roster import Roster, Shifted
from fedpers.flower.transport import DirectGrid

log = logging.getLogger("fedpers")
FIRST_NODE = 2  # Flower keeps 0 and 1 for itself


class LocalGrid(Grid):
    """Base of grids that answer messages as they are pushed and keep the replies until they are pulled."""

    def __init__(self) -> None:
        self._run = begin_run()
        self._replies: dict[str, Message] = {}
        self._timeout: float | None = None  # seconds, of the messages being answered

    @abstractmethod
    def _answer(self, messages: Sequence[Message]) -> list[Message]:
        """The replies, in the order of the messages."""

    def set_run(self, run: Any) -> None:
        """Flower's interface; the run of this process is fixed."""

    @property
    def run(self) -> Run:
        """The run that all messages belong to."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Flower's deprecated way to make a message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Deliver messages at once; returns their ids."""
        sent = number(messages)
        for reply in number(self._answer(sent)):
            self._replies[reply.metadata.reply_to_message_id] = reply
        return [m.metadata.message_id for m in sent]

    def pull_messages(
        self, message_ids: Iterable[str] | None = None, *, reply_to_message_ids: Iterable[str] | None = None
    ) -> list[Message]:
        """The replies to the given messages, each once; Flower 1.43 has the second name for them."""
        wanted = reply_to_message_ids if message_ids is None else message_ids
        return [self._replies.pop(i) for i in wanted or () if i in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Sequence[Message]:
        """Deliver messages and return their replies."""
        self._timeout = timeout
        return self.pull_messages(self.push_messages(messages))


class InProcessGrid(LocalGrid, DirectGrid):
    """The clients of a `Cohort`; node id = partition id + 2 in messages."""

    def __init__(self, cohort: Cohort) -> None:
        super().__init__()
        self.cohort = cohort

    def get_node_ids(self) -> list[int]:
        """The ids of all nodes, in the order of their partitions."""
        return list(range(FIRST_NODE, FIRST_NODE + self.cohort.federation.num_clients))

    def roster(self, needs: Sequence[str]) -> tuple[Mapping[int, int], Roster]:
        """({partition id: node id}, all clients), from the federation's own arrays."""
        federation = self.cohort.federation
        known = {"label_counts": federation.label_counts}
        properties = {n: doubles(known[n]) for n in needs}
        nodes = Shifted(0, federation.num_clients, FIRST_NODE)
        return nodes, Roster(range(federation.num_clients), doubles(federation.num_train), properties)

    def answer(self, requests: Sequence[Request], timeout: float | None = None) -> list[Outcome]:
        """The outcomes, in the order of the requests; clients of this process take the time they need."""
        answers = self.cohort.handle(requests)
        for failure in (a for a in answers if isinstance(a, Exception)):
            log.debug("a client failed", exc_info=failure)
        return [outcome(a) for a in answers]

    def _answer(self, messages: Sequence[Message]) -> list[Message]:
        opened = {
            i: self._open(content) for i, content in {id(m.content): m.content for m in messages}.items()
        }
        requests = [Request(m.metadata.dst_node_id - FIRST_NODE, *opened[id(m.content)]) for m in messages]
        outcomes = self.answer(requests, self._timeout)
        return [reply_message(m, found) for m, found in zip(messages, outcomes, strict=True)]

    def _open(self, content: RecordDict) -> tuple[Any, Header]:
        header, order = open_content(content, self.cohort.device)
        return order, Header.of(header)
