"""The cores and GPUs that this process may use, which can be fewer than the machine has.

A job of Slurm, a container or `taskset` may use a part of a node. Whoever counts the node starts more
processes than the job has cores, or takes another job's GPU.
"""

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
VMSTAT = Path("/proc/vmstat")
MEMBERSHIP = Path("/proc/self/cgroup")


def cores() -> int:
    """The CPUs that this process may keep busy: the least of affinity, cgroup's quota and Slurm's grant."""
    known = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return max(1, math.floor(min([len(known), *_quotas(MEMBERSHIP, CGROUPS), *_of_slurm(os.environ)])))


def gpus() -> list[int]:
    """The numbers, as torch counts, of the GPUs that this process may use.

    Torch itself keeps to CUDA_VISIBLE_DEVICES. Where that is not set but a job of Slurm names its GPUs,
    and the node shows more than those, the job's are taken. Asking does not initialise CUDA.
    """
    import torch

    seen = list(range(torch.cuda.device_count()))
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return seen
    granted = os.environ.get("SLURM_STEP_GPUS", os.environ.get("SLURM_JOB_GPUS", ""))
    named = [int(n) for n in granted.split(",") if n.strip().isdigit()]
    return named if named and len(named) < len(seen) and set(named) <= set(seen) else seen


@contextmanager
def only_granted_gpus() -> Iterator[None]:
    """Hide all GPUs but those of `gpus` from processes that are started here."""
    granted = gpus()
    if "CUDA_VISIBLE_DEVICES" in os.environ or not granted:
        yield
        return
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, granted))
    try:
        yield
    finally:
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)


def killed_for_memory() -> int:
    """How many processes Linux has killed since boot because memory ran out; 0 where it does not tell."""
    found = [line.split() for line in _lines(VMSTAT) if line.startswith("oom_kill ")]
    return int(found[0][1]) if found else 0


def _of_slurm(environment: Mapping[str, str]) -> Iterator[int]:
    """CPUs of the job on this node; in a step of several tasks, of the task."""
    names = ["SLURM_CPUS_ON_NODE"] + ["SLURM_CPUS_PER_TASK"] * ("SLURM_STEP_ID" in environment)
    for name in names:
        text = environment.get(name, "")
        if text.isdigit() and int(text):
            yield int(text)


def _quotas(membership: Path, root: Path) -> Iterator[float]:
    """CPUs that the process' control groups allow, of each group from its own to the root."""
    for line in _lines(membership):
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        for folder in _upwards(root / controllers if controllers else root, group):
            with suppress(ValueError, IndexError, ZeroDivisionError):
                yield _quota(folder)


def _upwards(root: Path, group: str) -> Iterator[Path]:
    """The folders of a group and of those above it; a container sees its own as the root."""
    parts = [p for p in group.split("/") if p and p != ".."]
    for n in range(len(parts), -1, -1):
        yield root.joinpath(*parts[:n])


def _quota(folder: Path) -> float:
    """CPUs by cpu.max (version 2) or cpu.cfs_* (version 1); inf: no limit.

    Raises:
        ValueError, IndexError, ZeroDivisionError: there is no such file, or it is none.
    """
    words = " ".join(_lines(folder / "cpu.max")).split()
    if not words:
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        words = [line for name in names for line in _lines(folder / name)]
    if words[0] in ("max", "-1"):
        return math.inf
    return int(words[0]) / int(words[1])


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
