"""Replies as they come in, fetched so that one which stops half-way holds up no other.

Flower fetches a reply object by object, and waits minutes for one that its sender began and never finished;
a call for many replies waits with it. Here each call has a thread, and few replies.
"""

import math
import threading
from collections.abc import Collection
from concurrent.futures import Future, wait

from flwr.app import Message
from flwr.serverapp import Grid

CALLS = 16  # at one time: with more clients a call is for several, so that many clients cost few requests


class Mailbox:
    """The replies to some messages; what nobody takes any more is forgotten with it."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._calls: dict[Future[list[Message]], frozenset[str]] = {}  # under way -> the messages it is for

    def look(self, numbers: Collection[str], patience: float) -> list[Message]:
        """The replies to messages `numbers` that have come whole, after at most `patience` seconds.

        Raises:
            Exception: whatever the grid raised, a lost connection for instance.
        """
        asked = frozenset[str]().union(*self._calls.values())
        free = [n for n in numbers if n not in asked]
        size = math.ceil(len(numbers) / CALLS)
        for i in range(0, len(free), size or 1):
            self._call(free[i : i + size])
        done, _ = wait(self._calls, patience)
        for call in done:
            del self._calls[call]
        found = [message for call in done for message in call.result()]
        return [m for m in found if m.metadata.reply_to_message_id in numbers]

    def _call(self, numbers: list[str]) -> None:
        found: Future[list[Message]] = Future()
        self._calls[found] = frozenset(numbers)

        def fetch() -> None:
            try:
                found.set_result(list(self.grid.pull_messages(numbers)))
            except BaseException as error:  # it is raised where somebody looks
                found.set_exception(error)

        # A daemon: the end of a run does not wait for the half of a reply.
        threading.Thread(target=fetch, daemon=True).start()
