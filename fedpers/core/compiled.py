"""C sources, compiled on this machine when they are first used."""

import ctypes
import hashlib
import logging
import math
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor

log = logging.getLogger("fedpers")
SHARED = Path(__file__).with_name("mixtures.h")  # of all kernels
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-shared", "-fPIC")
PREBUILT = Path(__file__).with_name("prebuilt")  # of an image that has no compiler, see `build_portable`
# Instruction sets that a library is built for, the best first, and what /proc/cpuinfo calls their parts.
_V2 = frozenset(("cx16", "popcnt", "sse4_1", "sse4_2", "ssse3"))
_V3 = _V2 | {"avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
LEVELS: dict[str, dict[str, frozenset[str]]] = {
    "x86_64": {"x86-64-v4": _V4, "x86-64-v3": _V3, "x86-64-v2": _V2},
    "aarch64": {"armv8-a": frozenset(("asimd",))},
}


def compiled(sources: Sequence[Path]) -> Any:
    """The library of these sources, headers among them; None without a compiler, or with FEDPERS_NATIVE=0.

    Also None if they are still being compiled when `patience` is over; torch computes meanwhile.
    """
    if os.environ.get("FEDPERS_NATIVE", "1") == "0":
        return None
    ready, compiler = portable(sources), _compiler()
    if ready is None and compiler is None:
        return None
    try:
        path = ready or _file(str(compiler), sources)
        if path is None:
            log.warning("the C kernels are still being compiled, torch is used instead")
            return None
        return ctypes.CDLL(str(path))
    except (OSError, subprocess.CalledProcessError) as error:
        log.info("the C kernels could not be compiled, torch is used instead: %s", error)
        return None


def _compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def portable(sources: Sequence[Path]) -> Path | None:
    """The library that `build_portable` made for the best instructions that this processor has; or None."""
    if not PREBUILT.is_dir():
        return None
    has, paths = set(_flags().split()), _portable(sources)
    fitting = (path for level, path in paths.items() if LEVELS[platform.machine()][level] <= has)
    return next(filter(Path.is_file, fitting), None)


def build_portable(sources: Sequence[Path]) -> list[Path]:
    """Compile for every instruction set of this kind of processor, into PREBUILT; for images.

    Raises:
        OSError: there is no compiler.
        subprocess.CalledProcessError: it failed.
    """
    PREBUILT.mkdir(exist_ok=True)
    made = _portable(sources)
    for level, path in made.items():
        flags = [f"-march={level}" if f == "-march=native" else f for f in FLAGS]
        subprocess.run(_command(_compiler() or "cc", flags, sources, path), check=True)
    return list(made.values())


def _portable(sources: Sequence[Path]) -> dict[str, Path]:
    """Where the library for each level of this kind of processor lies, the best first."""
    digest = _digest(sources)
    return {level: PREBUILT / f"{digest}.{level}.so" for level in LEVELS.get(platform.machine(), {})}


def _command(compiler: str, flags: Sequence[str], sources: Sequence[Path], path: Path) -> list[str]:
    code = [str(s) for s in sources if s.suffix == ".c"]
    return [compiler, *flags, *code, "-o", str(path), "-lm"]


def _digest(sources: Sequence[Path], more: str = "") -> str:
    text = "".join(s.read_text() for s in sources) + more + platform.machine() + " ".join(FLAGS)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _flags() -> str:
    """What the first processor can do, a line of /proc/cpuinfo."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


class Patience:
    """How long a process waits for a compiler: a limited time if the process has a deadline."""

    def __init__(self) -> None:
        self.seconds: float | None = None  # None: as long as it takes
        self.pending: set[Path] = set()  # libraries that were not ready in time

    @property
    def rewarded(self) -> bool:
        """Whether a library is ready now that was not when this process needed it."""
        return any(path.exists() for path in self.pending)


patience = Patience()


def _file(compiler: str, sources: Sequence[Path]) -> Path | None:
    """The library of these sources for this processor; None if it takes longer than `patience`.

    FEDPERS_CFLAGS holds more flags for the compiler, as `make sanitize` gives them.
    """
    more = os.environ.get("FEDPERS_CFLAGS", "").split()
    name = f"native-{_digest(sources, _flags() + ' '.join(more))}.so"
    root = os.environ.get("FEDPERS_CACHE") or Path.home() / ".cache" / "fedpers"
    path = Path(root).expanduser() / name
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{name}.{os.getpid()}.part")
    _sweep(path)
    command = _command(compiler, [*FLAGS, *more], sources, part)
    # a session of its own: if this process is killed meanwhile, the next one finds what it began
    work = subprocess.Popen(
        ["/bin/sh", "-c", KEPT, str(part), str(path), *command], start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        if work.wait(patience.seconds):
            raise subprocess.CalledProcessError(work.returncode, command)
    except subprocess.TimeoutExpired:
        patience.pending.add(path)
        return None
    return path


# $0 is where the compiler writes, $1 where the whole library goes; what is half made is removed
KEPT = 'goal=$1; shift; if "$@"; then mv "$0" "$goal"; else rm -f "$0"; exit 1; fi'


def _sweep(path: Path, age_s: float = 3600.0) -> None:
    """Remove what compilers left that were killed: folders and parts that nobody has written for an hour."""
    for left in (*path.parent.glob("tmp*"), *path.parent.glob("native-*.part")):
        try:
            if time.time() - left.stat().st_mtime > age_s:
                shutil.rmtree(left) if left.is_dir() else left.unlink()
        except OSError as error:  # another process was quicker
            log.debug("%s stays: %s", left, error)


def longs(values: Sequence[int]) -> Any:
    """A C array of 64-bit integers."""
    return (ctypes.c_long * len(values))(*values)


def ints(values: Sequence[int]) -> Any:
    """A C array of 32-bit integers."""
    return (ctypes.c_int * len(values))(*values)


def hops(stacks: Sequence[Tensor | None]) -> Any:
    """Of each stack the distance between rows, in numbers; 0 if all clients share one row, or for None."""
    return longs([0 if t is None else t.stride(0) for t in stacks])


def with_whole_rows(stack: Tensor) -> Tensor:
    """A stack whose rows are contiguous; an expanded one is not copied."""
    plain = stack.is_contiguous() or stack.stride()[1:] == _strides(stack.shape[1:])
    return stack if plain or stack[0].is_contiguous() else stack.contiguous()


@lru_cache(256)
def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a contiguous tensor of this shape; slicing a row to ask it takes several times as long."""
    return tuple([math.prod(shape[i + 1 :]) for i in range(len(shape))])


def pointers(tensors: Sequence[Tensor | None]) -> Any:
    """A C array of the tensors' memory addresses."""
    return addresses([None if t is None else t.data_ptr() for t in tensors])


def addresses(places: Sequence[int | None]) -> Any:
    """A C array of memory addresses."""
    return (ctypes.c_void_p * len(places))(*places)


def pointer(t: Tensor | None = None) -> ctypes.c_void_p:
    """A tensor's memory address; a null pointer for None."""
    return ctypes.c_void_p(None if t is None else t.data_ptr())


def place(stack: Sequence[Tensor]) -> tuple[Any, Any]:
    """(address, distance between rows) of the only stack in the list; nulls if the list is empty."""
    return pointer(*stack), ctypes.c_long(*[t.stride(0) for t in stack])
