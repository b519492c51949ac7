"""The faults that a federation of devices has to survive, and how each of them ends.

The table of docs/deployment-rounds.md is this one; each fault has a test or more: test_faults.py compares.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

Test = TypeVar("Test", bound=Callable[..., None])

MATRIX = {
    1: (
        "a SuperNode is killed in a round and started again",
        "its reply is late, the round goes on without it; its key is refused for about a minute (error "
        "2004), then it goes on from the state that the server last took",
    ),
    2: (
        "a client hangs",
        "late; its process is ended at the deadline and the SuperNode serves the next order",
    ),
    3: (
        "a reply holds NaN",
        "refused by name, retried, counted; the version stays, so the result equals that of a run "
        "without the fault",
    ),
    4: ("a reply is of another shape, unreadable, or an error", "as with NaN"),
    5: (
        "a reply is lost after the state was written",
        "late; the next order loads the version before: nothing is applied twice, the same result",
    ),
    6: (
        "the server app is killed",
        "submitted again, continues from the last checkpoint; the result equals that of an undisturbed run, "
        "bit for bit",
    ),
    7: (
        "the SuperLink is killed and started again on its database",
        "the nodes reconnect by themselves, the run is submitted again; the result equals that of an "
        "undisturbed run, bit for bit",
    ),
    8: (
        "the device's disk is full",
        "the order fails by name, counted; the version before is intact and is used once there is room",
    ),
    9: (
        "the device's state is wiped",
        "refused by name; with `lost_state=reinitialise` a new state, counted in `reinitialised`",
    ),
    10: (
        "a device is cut off and comes back after two rounds",
        "the rounds go on without it; what it was asked before is dropped, it is asked anew and goes on "
        "from the state that it had",
    ),
    11: (
        "a device's clock is two minutes ahead",
        "its SuperNode is refused with 401 and ends; the others are served",
    ),
    12: (
        "a key nobody admitted, no key, another authority, two nodes under one name, a Control request "
        "from a device's host",
        "error 2004, error 2001, no connection, the second node ignored and named, 403",
    ),
    13: (
        "a device answers with impossible numbers, or with fields that do not exist",
        "refused with an error that names client and field, asked once more, counted; the others go on",
    ),
    14: (
        "a run asks for what a device's owner does not allow",
        "refused by that device with the key that is not allowed; nothing of the run is imported there",
    ),
    15: (
        "a device's compiler takes longer than the deadline, or is killed",
        "torch answers meanwhile; the compiler goes on and leaves nothing behind",
    ),
}
TESTS: dict[int, list[str]] = defaultdict(list)


def fault(*numbers: int) -> Callable[[Test], Test]:
    """Marks a test as one of a row of the matrix."""

    def mark(test: Test) -> Test:
        for number in numbers:
            TESTS[number].append(test.__name__)
        return test

    return mark
