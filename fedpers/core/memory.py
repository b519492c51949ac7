"""Memory of the process, and disk space of its files."""

import ctypes
import gc
import mmap
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # imported late: the command line sets malloc's policy before it needs NumPy
    import numpy as np

TRIM, LARGE, MAPS = -1, -3, -4  # mallopt's M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX
ROOM = 512 * 2**20  # bytes of the heap that are to have huge pages
KEPT = ROOM + 256 * 2**20  # bytes of freed memory
PUNCH = 1 | 2  # fallocate's FALLOC_FL_KEEP_SIZE and FALLOC_FL_PUNCH_HOLE
HUGE, ADVICE = 2**21, 14  # bytes of a huge page; madvise's MADV_HUGEPAGE
OWN_FROZEN = gc.get_freeze_count()  # from Python 3.12 on, objects of the interpreter's own
YOUNG = 20_000  # objects that are made before Python looks for garbage among them


def keep_freed() -> None:
    """Let the process keep some of what was freed, until `give_back`; only for one that is a run's own.

    There is no way back: glibc does not tell its settings, and adapts them no more once one was set.
    A round's stacks are freed at its end. glibc returned them to the system, and each page of the next
    round's stacks cost a page fault: ten times what it costs to write the page.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(TRIM, KEPT)
        libc.mallopt(MAPS, 0)  # a mapping of its own goes back at once; its threshold is 32 MiB at most
        _ask_for_huge_pages(libc)


def _ask_for_huge_pages(libc: ctypes.CDLL) -> None:
    """Ask for huge pages in the next part of the heap before it is written: Linux gives them on request only.

    With small pages, passes over stacks of large models wait for address translation (TLB misses).
    """
    libc.malloc.restype = ctypes.c_void_p
    if place := libc.malloc(ctypes.c_size_t(ROOM)):
        start = -(-place // HUGE) * HUGE
        libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(ROOM - HUGE), ADVICE)
        libc.free(ctypes.c_void_p(place))


def return_large() -> None:
    """Return large freed blocks to the system at once; only for a process that is a run's own.

    Threads have heaps of their own: those that fetched large models one after the other kept several.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(LARGE, 2**20)


def give_back() -> None:
    """Return freed memory to the system.

    glibc keeps free pages between blocks that are still in use, so a process grew with each run that it made.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):  # musl has none
        libc.malloc_trim(0)


def punch(handle: int, start: int, count: int) -> None:
    """Give back the disk space of so many bytes of an open file, which are zeros then.

    Not possible on systems other than Linux and on some file systems; there the bytes stay as they are.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "fallocate64"):
        libc.fallocate64(handle, PUNCH, ctypes.c_int64(start), ctypes.c_int64(count))


@contextmanager
def gc_frozen() -> Iterator[None]:
    """Exclude existing objects from Python's garbage collection, and collect rarely.

    A collection that visits 10^6 clients takes longer than a round. A round makes and frees thousands of
    small objects, few of them in cycles; Python's default, a collection each 700 objects, took up to a
    tenth of its time.
    """
    already, (young, *older) = gc.get_freeze_count(), gc.get_threshold()
    gc.freeze()
    if young:  # 0: the user has switched it off
        gc.set_threshold(max(young, YOUNG), *older)
    try:
        yield
    finally:
        gc.set_threshold(young, *older)
        if already <= OWN_FROZEN:
            gc.unfreeze()


def sparse_zeros(count: int, dtype: "type[np.generic] | np.dtype") -> "np.ndarray":
    """[count] zeros that take memory page by page, where numbers are written.

    np.zeros asks for huge pages, with which a thousand scattered numbers took as much memory as all of them.
    """
    import numpy as np

    size = count * np.dtype(dtype).itemsize
    return np.frombuffer(mmap.mmap(-1, size), dtype) if size else np.zeros(0, dtype)
