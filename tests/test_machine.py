"""What a process was granted: by taskset, by control groups, by Slurm."""

import os
import subprocess
import sys

import pytest
import torch

from fedpers.app import backends
from fedpers.config.engine import EngineConfig
from fedpers.core import machine

MINE = min(os.sched_getaffinity(0))


@pytest.fixture(autouse=True)
def _a_large_node(monkeypatch, tmp_path):
    """64 cores, no group of its own, no Slurm."""
    for name in [n for n in os.environ if n.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64), raising=False)
    monkeypatch.setattr(machine, "MEMBERSHIP", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "CGROUPS", tmp_path / "groups")


def grouped(tmp_path, membership, **files):
    """`files` are by path, slashes as two underscores and dots as one."""
    (tmp_path / "cgroup").write_text(membership)
    for name, text in files.items():
        *folders, last = name.split("__")
        path = (tmp_path / "groups").joinpath(*folders)
        path.mkdir(parents=True, exist_ok=True)
        (path / last.replace("_", ".", 1)).write_text(text)


def test_taskset_is_kept_to():
    code = "from fedpers.core import machine; print(machine.cores())"
    command = ["taskset", "-c", str(MINE), sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "1\n"


@pytest.mark.parametrize(
    ("membership", "files", "cores"),
    [
        ("0::/", {}, 64),
        ("0::/job", {"job__cpu_max": "400000 100000\n"}, 4),
        ("0::/job", {"job__cpu_max": "250000 100000\n"}, 2),  # no third core all of the time
        ("0::/job", {"job__cpu_max": "50000 100000\n"}, 1),
        ("0::/job", {"job__cpu_max": "max 100000\n"}, 64),
        ("0::/job/step", {"job__cpu_max": "300000 100000\n", "job__step__cpu_max": "max 100000\n"}, 3),
        ("0::/../outside", {"cpu_max": "200000 100000\n"}, 2),  # as in a container
        ("0::/job", {"job__cpu_max": "nonsense\n"}, 64),
        ("0::/job", {"job__cpu_max": "100000 0\n"}, 64),
        (
            "4:cpu,cpuacct:/job\n3:memory:/m\n0::/",
            {
                "cpu,cpuacct__job__cpu_cfs_quota_us": "800000\n",
                "cpu,cpuacct__job__cpu_cfs_period_us": "100000\n",
            },
            8,
        ),
        ("4:cpu:/job", {"cpu__job__cpu_cfs_quota_us": "-1\n", "cpu__job__cpu_cfs_period_us": "100000\n"}, 64),
        ("9:cpuset:/job", {"cpuset__job__cpu_max": "100000 100000\n"}, 64),
    ],
)
def test_a_groups_quota_is_kept_to(tmp_path, membership, files, cores):
    grouped(tmp_path, membership, **files)
    assert machine.cores() == cores


@pytest.mark.parametrize(
    ("granted", "cores"),
    [
        ({"SLURM_CPUS_ON_NODE": "8"}, 8),
        ({"SLURM_CPUS_ON_NODE": "8", "SLURM_CPUS_PER_TASK": "2"}, 8),  # the batch script has all tasks' cores
        ({"SLURM_CPUS_ON_NODE": "8", "SLURM_CPUS_PER_TASK": "2", "SLURM_STEP_ID": "0"}, 2),
        ({"SLURM_CPUS_ON_NODE": "128"}, 64),
        ({"SLURM_CPUS_ON_NODE": "many"}, 64),
        ({"SLURM_CPUS_ON_NODE": "0"}, 64),
    ],
)
def test_a_job_of_slurm_is_kept_to(monkeypatch, granted, cores):
    for name, value in granted.items():
        monkeypatch.setenv(name, value)
    assert machine.cores() == cores


@pytest.mark.parametrize(
    ("granted", "gpus"),
    [
        ({}, [0, 1, 2, 3]),
        ({"SLURM_JOB_GPUS": "1,3"}, [1, 3]),
        ({"SLURM_JOB_GPUS": "0,1,2,3", "SLURM_STEP_GPUS": "2"}, [2]),
        ({"SLURM_JOB_GPUS": "5,6"}, [0, 1, 2, 3]),  # numbers of a node whose other GPUs are hidden
        ({"SLURM_JOB_GPUS": "1,3", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, [0, 1, 2, 3]),  # torch keeps to it
    ],
)
def test_only_granted_gpus_are_seen(monkeypatch, granted, gpus):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    for name, value in granted.items():
        monkeypatch.setenv(name, value)
    assert machine.gpus() == gpus
    with machine.only_granted_gpus():
        seen = os.environ["CUDA_VISIBLE_DEVICES"]
    assert seen == granted.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, gpus)))
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == granted.get("CUDA_VISIBLE_DEVICES")


def test_ray_is_told_what_was_granted(monkeypatch):
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "3")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert backends.resources_there(None) == [{"CPU": 3, "GPU": 2}]
    init = backends._backend(EngineConfig("ray"))["init_args"]
    assert (init["num_cpus"], init["num_gpus"]) == (3, 2)
    assert "num_cpus" not in backends._backend(EngineConfig("ray", address="auto"))["init_args"]


def test_nobody_counts_the_node():
    """One place counts; whoever asks the operating system himself gets all of a node."""
    from tests.test_imports import FILES

    text = {m: p.read_text(encoding="utf-8") for m, p in FILES.items()}
    assert [m for m, code in text.items() if "cpu_count(" in code or "getaffinity(" in code] == [
        "core.machine"
    ]
    assert [m for m, code in text.items() if "cuda.device_count(" in code] == ["core.machine"]
