"""What a runner knows of a request, and what requests must have in common to share a stack."""

from typing import Any, NamedTuple

from fedpers.core.data import ClientData
from fedpers.core.pytree import TreeSpec
from fedpers.engines.stack import Sizes
from fedpers.flower.messages import Header, Request


class Job(NamedTuple):
    """A request that is to be run."""

    place: int  # among the requests
    request: Request
    data: ClientData | None  # the client's; None where it is looped
    state: Any  # the client's, or UNREAD
    leaves: list[Any]  # of order and state


class Key(NamedTuple):
    """What must be equal for clients to share a stack."""

    kind: tuple[str, type, bool]
    header: Header
    sizes: Sizes
    order: TreeSpec
    state: TreeSpec
    bars: bool


class OrderGroup(NamedTuple):
    """What requests with one order and header have in common, if they are stacked."""

    kind: tuple[str, type, bool]  # of request, type of the order, whether clients are assessed
    header: Header
    spec: TreeSpec
    leaves: list[Any]
    loops_kernels: bool  # clients whose state has kernels of convolutions are looped
    bars: bool  # stacked only as long as torch makes no convolution
    by_work: bool  # clients whose step is large are looped
    keys: dict[Any, Key]  # of its clients, by sizes and spec of the state
