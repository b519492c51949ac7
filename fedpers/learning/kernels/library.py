"""The C code of the kernels."""

from functools import lru_cache
from pathlib import Path
from typing import Any

from fedpers.core import sums
from fedpers.core.compiled import SHARED, build_portable, compiled

HEADERS = "native convolve network products softmax derivatives score extra passes features motion recur"
CODE = "steps recur assess pooled"
SOURCES = [SHARED] + [
    Path(__file__).with_name(f"{name}.{kind}")
    for kind, names in (("h", HEADERS), ("c", CODE))
    for name in names.split()
]


@lru_cache(maxsize=1)
def library() -> Any:
    """The compiled kernels; None without a compiler, or if they are switched off."""
    return compiled(SOURCES)


def prepare() -> bool:
    """Compile all kernels that are not there yet; whether all are there now."""
    return None not in (sums.library(), library())


def prepare_portable() -> list[Path]:
    """Compile all kernels for an image, see `build_portable`; returns their files."""
    return [path for sources in (sums.SOURCES, SOURCES) for path in build_portable(sources)]
