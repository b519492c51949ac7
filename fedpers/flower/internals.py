"""What needs Flower's private interface; everything else uses the public one."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

_NUMBERS = itertools.count()


def set_message_id(message: Message, number: int) -> None:
    """Number a message the way Flower's own grids do (there is no public way)."""
    message.metadata.__dict__["_message_id"] = str(number)


def number(messages: Iterable[Message]) -> list[Message]:
    """The messages, each with an id that no other message of this process has."""
    numbered = list(messages)
    for message in numbered:
        set_message_id(message, next(_NUMBERS))
    return numbered


def begin_run(run_id: int = 1) -> Run:
    """A run for messages that never leave this process; Flower's Message() asks for its identity.

    Inside a run of Flower's own the identity stays, or that run's messages would be refused.
    """
    if TaskIdentity._task_id is None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = run_id
    return Run.create_empty(run_id=run_id)


@contextmanager
def unreported() -> Iterator[None]:
    """While this is open Flower reports no usage, unless the environment asks it to.

    Flower reads the environment when it is imported, and somebody may have done so before.
    """
    from flwr.supercore import telemetry

    before = telemetry.FLWR_TELEMETRY_ENABLED, telemetry.Thread
    telemetry.FLWR_TELEMETRY_ENABLED = os.environ.get("FLWR_TELEMETRY_ENABLED", "0")
    if telemetry.FLWR_TELEMETRY_ENABLED != "1":  # a thread could look at it when it is set back
        telemetry.Thread = _AtOnce  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        telemetry.FLWR_TELEMETRY_ENABLED, telemetry.Thread = before  # type: ignore[misc]


class _AtOnce:
    """In the place of a thread: does its work when it is started."""

    def __init__(self, target: Callable[[], None], daemon: bool) -> None:
        self.start = target


def is_simulation(grid: Grid) -> bool:
    """Whether a grid is that of Flower's simulation engine, not one to a SuperLink."""
    from flwr.superlink.grid import InMemoryGrid  # the whole SuperLink comes along: databases, a web server

    return isinstance(grid, InMemoryGrid)
