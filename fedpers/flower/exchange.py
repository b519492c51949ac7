"""The messages of one exchange, made when somebody looks at them.

Flower's strategies and grids hand each other messages. Between a strategy and a grid of the same
process most messages are never looked at, and making them costs more than a small client's answer;
so what they would hold is handed over, and whoever looks finds genuine messages.
"""

from collections.abc import Callable, Sequence
from typing import Any, overload

from flwr.app import Message


class Exchange(Sequence[Message]):
    """`parts` are what the messages hold; once a message was looked at, the messages count."""

    def __init__(self, header: dict[str, Any], parts: list[Any], make: Callable[[], list[Message]]) -> None:
        self.header, self.parts, self._make = header, parts, make
        self._messages: list[Message] | None = None

    @property
    def sealed(self) -> bool:
        """Whether nobody has looked yet."""
        return self._messages is None

    def __len__(self) -> int:
        return len(self.parts)

    @overload
    def __getitem__(self, i: int) -> Message: ...

    @overload
    def __getitem__(self, i: slice) -> list[Message]: ...

    def __getitem__(self, i: int | slice) -> Message | list[Message]:
        if self._messages is None:
            self._messages = self._make()
        return self._messages[i]
