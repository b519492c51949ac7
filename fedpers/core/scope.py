"""Values of context variables that hold for a while."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def holding(variable: ContextVar[T], value: T) -> Iterator[None]:
    """While this is open, the variable has the value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
