"""A Flower Grid inside one process: no Ray, no serialisation; a whole exchange arrives at once."""

import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from fedpers.engines.cohort import Cohort
from fedpers.flower.internals import begin_run, set_message_id
from fedpers.flower.messages import Envelope, Exchange, Request, error_reply, open_content
from fedpers.flower.roster import Roster, Shifted

log = logging.getLogger("fedpers")
FIRST_NODE = 2  # Flower keeps 0 and 1 for itself


class LocalGrid(Grid):
    """Numbers messages and keeps replies until they are asked for; `_answer` is the post."""

    def __init__(self) -> None:
        self._run, self._numbers = begin_run(), itertools.count()
        self._replies: dict[str, Message] = {}

    def _answer(self, messages: Sequence[Message]) -> list[Message]:
        raise NotImplementedError

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
        sent = list(messages)
        for message in sent:
            set_message_id(message, next(self._numbers))
        for reply in self._answer(sent):
            set_message_id(reply, next(self._numbers))
            self._replies[reply.metadata.reply_to_message_id] = reply
        return [m.metadata.message_id for m in sent]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies to the given messages, each once."""
        return [self._replies.pop(i) for i in message_ids if i in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Sequence[Message]:
        """Deliver messages and return their replies."""
        return self.pull_messages(self.push_messages(messages))


class InProcessGrid(LocalGrid):
    """The clients of a `Cohort` as nodes; node id = partition id + 2."""

    def __init__(self, cohort: Cohort) -> None:
        super().__init__()
        self.cohort = cohort
        self._nodes = range(FIRST_NODE, FIRST_NODE + cohort.federation.num_clients)

    def get_node_ids(self) -> list[int]:
        """All nodes; they are there from the start."""
        return list(self._nodes)

    def roster(self, needs: Sequence[str]) -> tuple[Mapping[int, int], Roster]:
        """The roster without messages, for populations too large to ask one by one."""
        federation = self.cohort.federation
        counts = torch.from_numpy(np.asarray(federation.num_train, dtype=np.float64))
        known = {"label_counts": federation.label_counts}
        properties = {n: torch.as_tensor(known[n]).double() for n in needs}
        ids = range(federation.num_clients)
        nodes = Shifted(0, federation.num_clients, FIRST_NODE)
        return nodes, Roster(tuple(ids), counts, properties)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Sequence[Message]:
        """Deliver messages and return their replies; nothing is made of what nobody looks at."""
        if not (isinstance(messages, Exchange) and messages.sealed):
            return super().send_and_receive(messages, timeout=timeout)
        nodes = [node for node, _ in messages.parts]
        answers = self._ask((node, order, messages.header) for node, order in messages.parts)
        parts = [(node, *answer) for node, answer in zip(nodes, answers, strict=True)]
        return Exchange({}, parts, lambda: self._reply_all(list(messages), answers))

    def _answer(self, messages: Sequence[Message]) -> list[Message]:
        device = self.cohort.device
        opened = [open_content(m.content, device) for m in messages]
        nodes = [m.metadata.dst_node_id for m in messages]
        answers = self._ask((n, b, h) for n, (h, b) in zip(nodes, opened, strict=True))
        return [_reply(m, *a) for m, a in zip(messages, answers, strict=True)]

    def _ask(self, asked: Iterable[tuple[int, Any, Any]]) -> list[tuple[str | None, Any, Any]]:
        """(error, header, body) of each node's answer."""
        requests = [Request(node - FIRST_NODE, order, header) for node, order, header in asked]
        return [_told(answer) for answer in self.cohort.handle(requests)]

    def _reply_all(self, messages: list[Message], answers: list[Any]) -> list[Message]:
        for message in messages:
            set_message_id(message, next(self._numbers))
        replies = [_reply(m, *a) for m, a in zip(messages, answers, strict=True)]
        for reply in replies:
            set_message_id(reply, next(self._numbers))
        return replies


def _told(answer: Any) -> tuple[str | None, Any, Any]:
    """(error, header, body) of an answer, an exception, or a failure's text from another process."""
    if isinstance(answer, str):
        return answer, None, None
    if isinstance(answer, Exception):
        log.debug("a client failed", exc_info=answer)
        return f"{type(answer).__name__}: {answer}", None, None
    return None, {"work": answer.work, "num": answer.num_examples}, answer.body


def _reply(message: Message, error: str | None, header: Any, body: Any) -> Message:
    if error is not None:
        return error_reply(message, error)
    return Message(Envelope(header, body), reply_to=message)
