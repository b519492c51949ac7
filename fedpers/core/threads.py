"""Passes over memory in several threads: a process whose workers wait for it may use their cores."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from contextvars import ContextVar

from fedpers.core.scope import holding

WHOLE = 64  # entries that a kernel takes at a time, at most: a part ends where a thread alone would go on
_threads: ContextVar[int] = ContextVar("threads", default=1)


def threads(count: int) -> AbstractContextManager[None]:
    """While this is open, long passes use so many threads."""
    return holding(_threads, count)


def in_parts(run: Callable[[Callable[[int], tuple[int, int]]], None], entries: int, least: int) -> None:
    """Call `run` once in each thread, with a function that gives the thread's part [first, end) of n entries.

    Args:
        run: without Python objects to write to but its own; C code without Python's lock runs side by side.
        entries: of all, in this pass.
        least: entries above which a further thread pays.
    """
    count = max(1, min(_threads.get(), entries // least))
    if count == 1:
        run(_part(0, 1))
        return
    with ThreadPoolExecutor(count - 1) as others:
        waiting = [others.submit(run, _part(p, count)) for p in range(1, count)]
        run(_part(0, count))
    for part in waiting:
        part.result()


def _part(p: int, count: int) -> Callable[[int], tuple[int, int]]:
    def cut(n: int, at: int) -> int:
        return n if at == count else n * at // count // WHOLE * WHOLE

    return lambda n: (cut(n, p), cut(n, p + 1))
