"""Values of context variables that hold for a while."""

from contextlib import AbstractContextManager, ContextDecorator
from contextvars import ContextVar, Token
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class holding(ContextDecorator, AbstractContextManager[None], Generic[T]):
    """While this is open, the variable has the value."""

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable, self._value = variable, value
        self._token: Token[T] | None = None

    def _recreate_cm(self) -> "holding[T]":  # of a decorator, for each call
        return holding(self._variable, self._value)

    def __enter__(self) -> None:
        self._token = self._variable.set(self._value)

    def __exit__(self, *error: Any) -> None:
        assert self._token is not None
        self._variable.reset(self._token)
