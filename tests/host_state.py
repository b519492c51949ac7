"""What a library finds in its host's process and leaves as it was; read in subprocesses of test_host.py."""

import ctypes
import gc
import locale
import logging
import multiprocessing
import os
import random
import re
import resource
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import Any


def snapshot() -> dict[str, Any]:
    """{kind: value}; torch, NumPy and matplotlib are looked at where they are imported already."""
    parts = [_interpreter(), _process(), _logs(), _numbers(), _memory()]
    return {name: value for part in parts for name, value in part.items()}


def changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """{kind: (before, after)} of what differs, of the kinds that both know."""
    both = before.keys() & after.keys()
    return {k: (before[k], after[k]) for k in sorted(both) if before[k] != after[k]}


def _interpreter() -> dict[str, Any]:
    return {
        "sys.path": list(sys.path),
        "sys.meta_path": [str(x) for x in sys.meta_path],
        "sys.path_hooks": [str(x) for x in sys.path_hooks],
        "hooks": (sys.excepthook, sys.displayhook, sys.unraisablehook, threading.excepthook),
        "streams": (sys.stdin, sys.stdout, sys.stderr),
        "trace": (sys.gettrace(), sys.getprofile(), sys.getswitchinterval(), sys.getrecursionlimit()),
        "gc": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), gc.get_debug(), list(gc.callbacks)),
        "warnings.filters": [str(f) for f in warnings.filters],
        "warnings.show": (warnings.showwarning, warnings.formatwarning),
        "random": random.getstate(),
        "locale": [locale.setlocale(c) for c in (locale.LC_ALL, locale.LC_NUMERIC, locale.LC_TIME)],
    }


def _process() -> dict[str, Any]:
    os.umask(mask := os.umask(0))
    numbers = [s for s in signal.valid_signals() if s not in (signal.SIGKILL, signal.SIGSTOP)]
    return {
        "os.environ": dict(os.environ),
        "cwd": Path.cwd(),
        "umask": mask,
        "signals": {s: str(signal.getsignal(s)) for s in numbers},
        "signal mask": signal.pthread_sigmask(signal.SIG_BLOCK, []),
        "limits": [resource.getrlimit(n) for n in range(16)],
        "affinity": os.sched_getaffinity(0),
        "nice": os.nice(0),
        "start method": multiprocessing.get_start_method(allow_none=True),
        "children": [p.name for p in multiprocessing.active_children()],
        "threads": sorted(t.name for t in threading.enumerate()),
    }


def _logs() -> dict[str, Any]:
    known = logging.root.manager.loggerDict
    named = {n: x for n, x in known.items() if isinstance(x, logging.Logger)} | {"root": logging.root}
    told = {
        n: (x.level, list(x.handlers), x.disabled, x.propagate, list(x.filters)) for n, x in named.items()
    }
    quiet = (logging.NOTSET, [], False, True, [])  # a logger that somebody asked for, and left alone
    return {
        "loggers": {n: v for n, v in told.items() if v != quiet},
        "logging": (logging.root.manager.disable, logging.getLoggerClass(), logging.getLogRecordFactory()),
        "logging levels": logging.getLevelNamesMapping(),
        "logging of warnings": logging._warnings_showwarning,
    }


def _numbers() -> dict[str, Any]:
    found: dict[str, Any] = {}
    if (np := sys.modules.get("numpy")) is not None:
        kind, key, *rest = np.random.get_state()
        found["numpy.random"] = (kind, key.tolist(), *rest)
        found["numpy"] = (np.geterr(), str(np.get_printoptions()))
    if (torch := sys.modules.get("torch")) is not None:
        found["torch.random"] = torch.get_rng_state().tolist()
        found["torch.threads"] = (torch.get_num_threads(), torch.get_num_interop_threads())
        found["torch"] = _torch(torch)
    if (pyplot := sys.modules.get("matplotlib")) is not None:
        found["matplotlib"] = str(pyplot.rcParams)
    if (hydra := sys.modules.get("hydra.core.global_hydra")) is not None:
        found["hydra"] = hydra.GlobalHydra.instance().is_initialized()
    if (pandas := sys.modules.get("pandas")) is not None:
        found["pandas"] = pandas.get_option("display.max_rows")
    return found


def _torch(torch: Any) -> dict[str, Any]:
    backends, cudnn = torch.backends, torch.backends.cudnn
    return {
        "dtype": torch.get_default_dtype(),
        "device": str(torch.get_default_device()),
        "matmul": (torch.get_float32_matmul_precision(), backends.cuda.matmul.allow_tf32),
        "fp32": [x.fp32_precision for x in (backends, backends.cuda.matmul, cudnn.conv, cudnn.rnn)],
        "mkldnn": (backends.mkldnn.enabled, backends.mkldnn.deterministic),
        "cudnn": [getattr(cudnn, n) for n in ("enabled", "benchmark", "deterministic", "allow_tf32")],
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "grad": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()),
        "autocast": [torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")],
        "sharing": torch.multiprocessing.get_sharing_strategy(),
    }


def _memory() -> dict[str, Any]:
    """Malloc's policy as it acts: whether a large piece lies in the heap, and what asked for huge pages."""
    piece = bytearray(b"x") * (48 * 2**20)  # above the largest threshold that glibc chooses for itself
    place = ctypes.addressof(ctypes.c_char.from_buffer(piece))
    heap, advised = [], False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if re.fullmatch(r"[0-9a-f]+-[0-9a-f]+", words[0]):
            is_heap = words[-1] == "[heap]"
            heap += [tuple(int(x, 16) for x in words[0].split("-"))] if is_heap else []
        elif words[0] == "VmFlags:":
            advised |= is_heap and "hg" in words
    thp = ctypes.CDLL(None).prctl(42, 0, 0, 0, 0)  # PR_GET_THP_DISABLE
    return {"malloc": any(a <= place < b for a, b in heap), "huge pages": (advised, thp)}
