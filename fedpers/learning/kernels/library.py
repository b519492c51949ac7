"""The C code of the kernels."""

from functools import lru_cache
from pathlib import Path
from typing import Any

from fedpers.core.compiled import compiled

SOURCES = [
    Path(__file__).with_name(name)
    for name in (
        *(
            "native.h",
            "convolve.h",
            "network.h",
            "products.h",
            "softmax.h",
            "extra.h",
            "passes.h",
            "features.h",
        ),
        *("native.c", "couple.c", "assess.c", "uniform.c"),
    )
]


@lru_cache(maxsize=1)
def library() -> Any:
    """The compiled kernels; None without a compiler, or if they are switched off."""
    return compiled(SOURCES)
