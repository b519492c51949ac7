"""Replies as they come in, fetched so that one which stops half-way holds up no other.

Flower fetches a reply object by object, and waits minutes for one that its sender began and never finished;
a call for many replies waits with it. Here each call has a thread, and few replies.
"""

import math
import threading
import time
from collections.abc import Collection
from concurrent.futures import Future, wait

from flwr.app import Message
from flwr.serverapp import Grid

from fedpers.deploy.frames import LARGE

CALLS = 16  # at one time: with more clients a call is for several, so that many clients cost few requests
STUCK_S = 120.0  # after which a call for a large reply is taken to wait for the half of one


class ReplyInbox:
    """The replies to some messages; what nobody takes any more is forgotten with it."""

    def __init__(self, grid: Grid, size: int = 0) -> None:
        """`size` of a reply in bytes, as far as that is known; large ones are fetched one by one."""
        self.grid, self.large = grid, size > LARGE
        self._calls: dict[Future[list[Message]], frozenset[str]] = {}  # under way -> the messages it is for
        self._asked: dict[str, float] = {}  # message -> when it was last asked for

    def look(self, numbers: Collection[str], patience: float) -> list[Message]:
        """The replies to messages `numbers` that have come whole, after at most `patience` seconds.

        Raises:
            Exception: whatever the grid raised, a lost connection for instance.
        """
        for some in self._due(numbers):
            self._call(some)
        done, _ = wait(self._calls, patience)
        for call in done:
            del self._calls[call]
        found = [message for call in done for message in call.result()]
        return [m for m in found if m.metadata.reply_to_message_id in numbers]

    def _due(self, numbers: Collection[str]) -> list[list[str]]:
        """What to ask for now, a call each."""
        asked = frozenset[str]().union(*self._calls.values())
        free = [n for n in numbers if n not in asked]
        if not self.large:
            size = math.ceil(len(numbers) / CALLS)
            return [free[i : i + size] for i in range(0, len(free), size or 1)]
        busy = any(self._asked[n] > time.monotonic() - STUCK_S for n in asked)
        return [] if busy or not free else [[min(free, key=lambda n: self._asked.get(n, 0.0))]]

    def _call(self, numbers: list[str]) -> None:
        found: Future[list[Message]] = Future()
        self._calls[found] = frozenset(numbers)
        self._asked |= dict.fromkeys(numbers, time.monotonic())

        def fetch() -> None:
            try:
                found.set_result(list(self.grid.pull_messages(numbers)))
            except BaseException as error:  # it is raised where somebody looks
                found.set_exception(error)

        # A daemon: the end of a run does not wait for the half of a reply.
        threading.Thread(target=fetch, daemon=True).start()
