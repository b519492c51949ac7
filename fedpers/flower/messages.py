"""What is in the messages between strategies and clients, packed only where it leaves the process.

An `Envelope` is a genuine RecordDict whose content is packed when somebody reads it, an `Exchange` a
sequence of messages that are made when somebody looks; an in-process grid takes what is in them as it
is. What leaves the process is `seal`ed: an ArrayRecord and a ConfigRecord, see `seal_arrays`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, overload

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from fedpers.core.data import Federation
from fedpers.core.errors import ConfigError
from fedpers.core.pytree import record
from fedpers.core.serialization import pack, stack_equals, unpack, unstack

_ARRAYS, _CONFIG, _METRICS = "arrays", "config", "metrics"  # the records of a message
SKELETON, _WHICH = "skeleton", "which"  # entries of the second
Header = dict[str, Any]  # plain numbers and strings


class Envelope(RecordDict):
    """A RecordDict of one record and a header; packed to named arrays at the first reading."""

    def __init__(self, header: Header, body: Any) -> None:
        self.__dict__["header"] = header
        self.__dict__["body"] = body

    def pack(self) -> None:
        """Turn into an ordinary RecordDict; from now on the arrays are what counts."""
        if "_data" not in self.__dict__:
            header, body = self.__dict__.pop("header"), self.__dict__.pop("body")
            self.__dict__.update(seal(header, body).__dict__)

    def __reduce__(self) -> tuple[Any, ...]:
        return RecordDict, (dict(self.items()),)


def _packing(name: str) -> Any:
    def method(self: Envelope, *args: Any) -> Any:
        self.pack()
        return getattr(RecordDict, name)(self, *args)

    return method


for _name in (
    "__getitem__",
    "__setitem__",
    "__delitem__",
    "__iter__",
    "__len__",
    "__contains__",
    "__eq__",
    "__repr__",
    "keys",
    "values",
    "items",
    "copy",
):  # every way in which RecordDict reads its content
    setattr(Envelope, _name, _packing(_name))


class Exchange(Sequence[Message]):
    """The messages of one exchange, made when somebody looks at one of them.

    Between a strategy and a grid of the same process most messages are never looked at, and making
    them costs more than a small client's answer. `parts` are what they would hold; once a message was
    looked at, the messages count.
    """

    def __init__(self, header: Header, parts: list[Any], make: Callable[[], list[Message]]) -> None:
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


def seal_arrays(arrays: list[np.ndarray], config: Header, num_examples: int | None = None) -> RecordDict:
    """The content of a message: arrays, plain values, and with a reply the number of samples."""
    content = RecordDict({_ARRAYS: ArrayRecord(arrays), _CONFIG: ConfigRecord(config)})
    if num_examples is not None:
        content[_METRICS] = MetricRecord({"num-examples": num_examples})
    return content


def open_arrays(content: RecordDict) -> tuple[list[np.ndarray], Header]:
    """(arrays, plain values) of a message's content.

    Raises:
        ConfigError: the message is of another kind, such as one of Flower's own strategies.
    """
    there = _ARRAYS in content and _CONFIG in content
    arrays, config = (content[_ARRAYS], content[_CONFIG]) if there else (None, None)
    if not isinstance(arrays, ArrayRecord) or not isinstance(config, ConfigRecord):
        raise ConfigError("this client answers fedpers strategies; the message holds no order")
    return arrays.to_numpy_ndarrays(), dict(config)


def seal(header: Header, body: Any) -> RecordDict:
    """The packed form of a header and a body: an array a tensor, the body's skeleton in the header."""
    skeleton, arrays = pack(body)
    return seal_arrays(arrays, {**header, SKELETON: skeleton})


def open_content(content: RecordDict, device: str = "cpu") -> tuple[Header, Any]:
    """(header, body) of a message's content, packed or not."""
    if "body" in content.__dict__:
        return content.__dict__["header"], content.__dict__["body"]
    arrays, header = open_arrays(content)
    return header, unpack(str(header.pop(SKELETON)), arrays, device)


def seal_many(body: Any) -> RecordDict:
    """The packed form of a body with many tensors of few shapes: one array a shape."""
    skeleton, arrays = pack(body)
    blocks, which = stack_equals(arrays)
    return seal_arrays(blocks, {SKELETON: skeleton, _WHICH: which})


def open_many(content: RecordDict, device: str = "cpu") -> Any:
    """What `seal_many` was given; a tensor that was in it several times is one object again."""
    blocks, config = open_arrays(content)
    return unpack(str(config[SKELETON]), unstack(blocks, config[_WHICH], device))


def error_reply(message: Message, reason: str) -> Message:
    """The reply of a client that failed."""
    return Message(Error(code=3, reason=reason), reply_to=message)


@record("flower.Assessed")
class Assessed:
    """A reply together with metrics of the participant's model right after its local work."""

    reply: Any
    metrics: dict[str, float]


class Request(NamedTuple):
    """One message to one client."""

    k: int  # partition id
    order: Any  # of an exchange, or what the client predicts with (evaluation)
    header: dict[str, Any]  # kind, t (round), e (exchange), assess

    @property
    def when(self) -> tuple[int, int]:
        """(round, exchange)."""
        return int(self.header["t"]), int(self.header["e"])


class Answer(NamedTuple):
    """What a client sends back."""

    body: Any
    num_examples: int
    work: int


class Host(Protocol):
    """What a client needs in order to answer Flower: its data and state are behind it."""

    device: str
    federation: Federation

    def handle(self, requests: Sequence[Request]) -> list[Answer | Exception]:
        """The answers, in the order of the requests; a client's failure is its answer."""
