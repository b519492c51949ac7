"""Which code takes the steps of local training, noted where they are taken, so that reports are true."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from fedpers.core.scope import holding

KERNEL, TORCH, RECORDED = "C", "torch", "recorded"  # what takes a step
MOST = 8  # programs that are kept: some methods make theirs anew for each client
STACK, LOOP = "stack", "loop"  # how clients are run


class Witness:
    """The notes made while `listening` is open."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.programs: dict[int, Any] = {}  # of steps, by identity

    @contextmanager
    def listening(self, wanted: bool = True) -> Iterator[None]:
        """While this is open notes are made, if `wanted`."""
        with holding(_witness, self if wanted else None):
            yield

    def who(self, *names: str) -> list[str]:
        """The given names that were noted, in their order."""
        return [name for name in names if self.counts[name]]


_witness: ContextVar[Witness | None] = ContextVar("witness", default=None)


def took(who: str) -> None:
    """Note what took steps, or ran a client."""
    if (witness := _witness.get()) is not None:
        witness.counts[who] += 1


def stepped_by(program: Any) -> None:
    """Note the program of a step; only the first few are kept."""
    if (witness := _witness.get()) is not None and len(witness.programs) < MOST:
        witness.programs[id(program)] = program
