"""The C code of the kernels."""

from functools import lru_cache
from pathlib import Path
from typing import Any

from fedpers.core.compiled import SHARED, compiled

HEADERS = (
    "native convolve network products softmax derivatives score extra passes features batch motion recur"
)
CODE = "native couple joint recur sweep assess uniform linear pooled"
SOURCES = [SHARED] + [
    Path(__file__).with_name(f"{name}.{kind}")
    for kind, names in (("h", HEADERS), ("c", CODE))
    for name in names.split()
]


@lru_cache(maxsize=1)
def library() -> Any:
    """The compiled kernels; None without a compiler, or if they are switched off."""
    return compiled(SOURCES)
