"""Memory of the process."""

import ctypes
import sys


def give_back() -> None:
    """Return what was freed to the system.

    glibc keeps the pages that lie between pieces still in use, so a process grew by each run it made.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):  # musl has none
        libc.malloc_trim(0)
