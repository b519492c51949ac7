"""Many clients with adapters of their own on one frozen base: memory, disk and messages are the adapters'."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CLIENTS, WIDTH, RANK, CLASSES = 200, 1200, 4, 3
BASE = 4 * (2 * WIDTH * WIDTH + 2 * WIDTH + 16 * WIDTH + WIDTH)  # bytes: 11.6 MB
ADAPTERS = 4 * (RANK * (16 + WIDTH) + 2 * RANK * 2 * WIDTH)  # of three layers: 0.1 MB
OWN = ADAPTERS + 4 * CLASSES * (WIDTH + 1)  # and the head
RUN = """
import json, resource, sys
import numpy as np, torch, fedpers
torch.set_num_threads(1)
rng = np.random.default_rng(0)
data = [(rng.normal(size=(8, 1, 4, 4)).astype("float32"), np.arange(8) % 3) for _ in range(200)]
federation = fedpers.Federation.from_arrays(data)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = fedpers.run(
    {"name": "fedper", "personal": ["*own_lora_*", "head.*"]}, data=federation, rounds=1, out=sys.argv[1],
    model={"name": "module", "path": "tests.own_nets:Wide", "lora": {"rank": 4, "dual": True}})
grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
print(json.dumps({"grown": grown, "summary": found.summaries[0]}))
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """(what the process said of itself, the folder of the run)."""
    out = tmp_path_factory.mktemp("many") / "run"
    done = subprocess.run([sys.executable, "-c", RUN, str(out)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), out


def test_memory_is_one_base_and_the_clients_own_parts(finished):
    """A base for each client would be 2.3 GB."""
    assert finished[0]["grown"] <= BASE + CLIENTS * OWN + 600e6 < CLIENTS * BASE / 2


def test_disk_is_the_clients_own_parts(finished):
    folders = [finished[1] / name for name in ("memory", "checkpoint")]
    stored = sum(p.stat().st_size for folder in folders for p in folder.rglob("*") if p.is_file())
    assert CLIENTS * OWN <= stored <= 1.2 * CLIENTS * OWN


def test_messages_are_the_shared_adapters(finished):
    """To the byte, up and down; a base would be a hundred times as much."""
    summary = finished[0]["summary"]
    assert summary["trains"] == {"entries": (ADAPTERS + OWN) // 4, "of": (ADAPTERS + OWN + BASE) // 4}
    assert summary["bytes"] == {"up": CLIENTS * ADAPTERS, "down": CLIENTS * ADAPTERS}
