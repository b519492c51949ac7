"""The C code of the kernels, compiled on this machine when it is first used.

It is optional: without a C compiler, or with FEDPERS_NATIVE=0, torch is used.
"""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

log = logging.getLogger("fedpers")
SOURCES = [
    Path(__file__).with_name(name)
    for name in (
        *("native.h", "convolve.h", "network.h", "products.h", "softmax.h", "passes.h", "features.h"),
        *("native.c", "couple.c", "assess.c", "uniform.c"),
    )
]
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-shared", "-fPIC")


@lru_cache(maxsize=1)
def library() -> Any:
    """The compiled kernels; None without a compiler, or if they are switched off."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if os.environ.get("FEDPERS_NATIVE", "1") == "0" or compiler is None:
        return None
    try:
        return ctypes.CDLL(str(_compiled(compiler)))
    except (OSError, subprocess.CalledProcessError) as error:
        log.info("the C kernels could not be compiled, torch is used instead: %s", error)
        return None


def _compiled(compiler: str) -> Path:
    """The library of this source for this processor; compiled in a temporary folder, then renamed."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    text = "".join(s.read_text() for s in SOURCES) + flags + platform.machine() + " ".join(FLAGS)
    name = f"native-{hashlib.sha256(text.encode()).hexdigest()[:16]}.so"
    root = os.environ.get("FEDPERS_CACHE") or Path.home() / ".cache" / "fedpers"
    path = Path(root).expanduser() / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            built = Path(folder) / name
            code = [str(s) for s in SOURCES if s.suffix == ".c"]
            command = [compiler, *FLAGS, *code, "-o", str(built), "-lm"]
            subprocess.run(command, check=True, capture_output=True)
            built.rename(path)
    return path
