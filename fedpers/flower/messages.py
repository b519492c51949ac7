"""Records in Flower messages. The one module that touches Flower's internals.

An `Envelope` is a genuine RecordDict whose content is packed only when somebody reads it; an
in-process grid takes the record as it is. What leaves the process is `seal`ed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, cast

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict

from fedpers.core.data import Federation
from fedpers.core.pytree import record
from fedpers.core.serialization import pack, stack_equals, unpack, unstack

ARRAYS, CONFIG = "arrays", "config"
_SKELETON, _WHICH = "skeleton", "which"
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


def seal(header: Header, body: Any) -> RecordDict:
    """The packed form: one ArrayRecord, one ConfigRecord."""
    skeleton, arrays = pack(body)
    config = ConfigRecord({**header, _SKELETON: skeleton})
    return RecordDict({ARRAYS: ArrayRecord(arrays), CONFIG: config})


def open_content(content: RecordDict, device: str = "cpu") -> tuple[Header, Any]:
    """(header, body) of a message's content, packed or not."""
    if "body" in content.__dict__:
        return content.__dict__["header"], content.__dict__["body"]
    header = dict(cast(ConfigRecord, content[CONFIG]))
    arrays = cast(ArrayRecord, content[ARRAYS]).to_numpy_ndarrays()
    return header, unpack(str(header.pop(_SKELETON)), arrays, device)


def seal_many(body: Any) -> RecordDict:
    """The packed form of a body with many tensors of few shapes: one array a shape."""
    skeleton, arrays = pack(body)
    blocks, which = stack_equals(arrays)
    config = ConfigRecord({_SKELETON: skeleton, _WHICH: which})
    return RecordDict({ARRAYS: ArrayRecord(blocks), CONFIG: config})


def open_many(content: RecordDict, device: str = "cpu") -> Any:
    """What `seal_many` was given; a tensor that was in it several times is one object again."""
    config = cast(ConfigRecord, content[CONFIG])
    blocks = cast(ArrayRecord, content[ARRAYS]).to_numpy_ndarrays()
    return unpack(str(config[_SKELETON]), unstack(blocks, cast(list[int], config[_WHICH]), device))


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
