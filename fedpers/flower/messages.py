"""Requests and answers between strategies and clients, and their form as Flower messages.

Within one process requests and answers are passed as objects; an `Exchange` makes messages of them only if
it is read. On a network a message holds an ArrayRecord and a ConfigRecord, see `seal_arrays`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from fedpers.core.data import Federation
from fedpers.core.errors import ConfigError
from fedpers.core.pytree import record
from fedpers.core.serialization import pack, unpack

_ARRAYS, _CONFIG, _METRICS = "arrays", "config", "metrics"  # the records of a message
_NUM = "num-examples"  # entry of the third, under the name that stock strategies weigh with
SKELETON = "skeleton"  # entry of the second: the body without its tensors


class Header(NamedTuple):
    """What all requests of one exchange have in common."""

    kind: str  # Flower's message type: train, evaluate or query
    t: int = 0  # round, from 1
    e: int = 0  # exchange within the round, from 0
    assess: bool = False  # whether participants evaluate after local training
    run: str = ""  # id of the run, by which a client that keeps its own state finds it
    base: str = ""  # digest of the model's frozen parameters, which everybody has and nobody sends
    passes: int = 0  # epochs, or local.steps, that clients make at most; 0: all that are configured

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Header:
        """From a message's plain values, of which there may be others.

        Raises:
            KeyError: kind, t or e is missing.
        """
        kind, t, e = str(config["kind"]), int(config["t"]), int(config["e"])
        run, base = str(config.get("run", "")), str(config.get("base", ""))
        return cls(kind, t, e, bool(config.get("assess")), run, base, int(config.get("passes", 0)))


class Request(NamedTuple):
    """What one client is asked in one exchange."""

    k: int  # partition id
    order: Any  # of training, or what the client predicts with (evaluation)
    header: Header
    tree: tuple[list[Any], Any] | None = None  # `flatten` of the order, where it was needed before

    @property
    def when(self) -> tuple[int, int]:
        """(round, exchange)."""
        return self.header.t, self.header.e


COST = ("work", "forwards", "head_steps")  # of an answer; numbers of samples


class Answer(NamedTuple):
    """What a client answers."""

    body: Any  # reply, `Assessed` reply, or the columns of an evaluation
    num_examples: int
    work: int  # samples of a gradient through the body; these and the next two as in `Work`
    forwards: int = 0
    head_steps: int = 0
    stack: int = 0  # of this process: orders in it are alike, replies rows of the same tensors; 0: none

    def cost(self) -> dict[str, int]:
        """What the training cost, as a message has it."""
        return {name: getattr(self, name) for name in COST}


Outcome = Answer | str  # a client's answer, or why there is none


def outcome(answer: Outcome | Exception) -> Outcome:
    """The answer; of a client's exception its type and text."""
    return f"{type(answer).__name__}: {answer}" if isinstance(answer, Exception) else answer


@record("flower.Assessed")
class Assessed:
    """A reply together with metrics of the participant's model right after its local work."""

    reply: Any
    metrics: dict[str, float]


class Host(Protocol):
    """Data and states of clients, as a client needs them in order to answer Flower."""

    device: str
    federation: Federation

    def handle(self, requests: Sequence[Request]) -> list[Answer | Exception]:
        """The answers, in the order of the requests; the answer of a client that failed is its exception."""


class Exchange(Sequence[Message]):
    """The messages of one exchange, made by `make` when the first of them is read.

    Making a message costs more than a small client's answer, and within one process most are never
    read. `parts` are what the messages hold: requests, or pairs (partition id, outcome). Once `unread`
    is False the messages may have been changed, and `parts` no longer count.
    """

    def __init__(self, parts: Sequence[Any], make: Callable[[], list[Message]]) -> None:
        self.parts, self._make = parts, make
        self._messages: list[Message] | None = None

    @property
    def unread(self) -> bool:
        """Whether no message was read so far."""
        return self._messages is None

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, i: Any) -> Any:
        if self._messages is None:
            self._messages = self._make()
        return self._messages[i]


def seal_arrays(
    arrays: list[np.ndarray], config: Mapping[str, Any], num_examples: int | None = None
) -> RecordDict:
    """The content of a message: arrays, plain values, and with a reply the number of samples."""
    content = RecordDict({_ARRAYS: ArrayRecord(arrays), _CONFIG: ConfigRecord(dict(config))})
    if num_examples is not None:
        content[_METRICS] = MetricRecord({_NUM: num_examples})
    return content


def open_arrays(content: RecordDict) -> tuple[list[np.ndarray], dict[str, Any]]:
    """(arrays, plain values) of a message's content.

    Raises:
        ConfigError: the message is of another kind, such as one of Flower's own strategies.
    """
    arrays, config = content.get(_ARRAYS), content.get(_CONFIG)
    if not isinstance(arrays, ArrayRecord) or not isinstance(config, ConfigRecord):
        raise ConfigError("this client answers fedpers strategies; the message holds no order")
    return arrays.to_numpy_ndarrays(), dict(config)


def seal(header: Mapping[str, Any], body: Any) -> RecordDict:
    """The packed form of a header and a body: an array a tensor, the body's skeleton in the header."""
    skeleton, arrays = pack(body)
    return seal_arrays(arrays, {**header, SKELETON: skeleton})


def readdressed(content: RecordDict, header: Mapping[str, Any]) -> RecordDict:
    """What `seal` made, with more in the header; the arrays are the same, so that an order is packed once."""
    config: Any = content[_CONFIG]
    return RecordDict({_ARRAYS: content[_ARRAYS], _CONFIG: ConfigRecord({**config, **header})})


def open_content(content: RecordDict, device: str = "cpu") -> tuple[dict[str, Any], Any]:
    """(header, body) that `seal` was given."""
    arrays, header = open_arrays(content)
    return header, unpack(str(header.pop(SKELETON)), arrays, device)


def request_messages(requests: Sequence[Request], nodes: Mapping[int, int]) -> list[Message]:
    """A message a request of one exchange, to node `nodes[k]`; what is told alike to many is packed once."""
    told = {(id(r.order), r.header): r for r in requests}
    sealed = {key: seal(r.header._asdict(), r.order) for key, r in told.items()}
    return [Message(sealed[id(r.order), r.header], nodes[r.k], r.header.kind) for r in requests]


def reply_message(message: Message, found: Outcome) -> Message:
    """The reply to a message: an answer, or an error with its reason."""
    if isinstance(found, str):
        return error_reply(message, found)
    skeleton, arrays = pack(found.body)
    content = seal_arrays(arrays, {**found.cost(), SKELETON: skeleton}, found.num_examples)
    return Message(content, reply_to=message)


def open_reply(message: Message, device: str = "cpu") -> Outcome:
    """What a reply holds, of `reply_message` or of a `PersonalizedClient` behind a ClientApp."""
    if message.has_error():
        return str(message.error.reason)
    header, body = open_content(message.content, device)
    return Answer(body, int(message.content.metric_records[_METRICS][_NUM]), **costs_of(header))  # type: ignore[arg-type]


def costs_of(header: Mapping[str, Any]) -> dict[str, int]:
    """What `Answer.cost` wrote into a reply's header."""
    return {name: int(header[name]) for name in COST}


def error_reply(message: Message, reason: str) -> Message:
    """The reply of a client that failed."""
    return Message(Error(code=2, reason=reason), reply_to=message)  # CLIENT_APP_RAISED_EXCEPTION
