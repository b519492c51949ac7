"""Flower's internals: what has no public way. Everything else uses its public interface."""

from __future__ import annotations

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import InMemoryGrid


def set_message_id(message: Message, number: int) -> None:
    """Number a message the way Flower's own grids do (there is no public way)."""
    message.metadata.__dict__["_message_id"] = str(number)


def begin_run(run_id: int = 1) -> Run:
    """A run for messages that never leave this process; Flower's Message() asks for its identity.

    Inside a run of Flower's own the identity stays, or that run's messages would be refused.
    """
    if TaskIdentity._task_id is None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = run_id
    return Run.create_empty(run_id=run_id)


def is_simulation(grid: Grid) -> bool:
    """Whether a grid is that of Flower's simulation engine, not one to a SuperLink."""
    return isinstance(grid, InMemoryGrid)
