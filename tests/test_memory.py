"""Freed memory goes back to the system."""

import subprocess
import sys

import pytest

HELD = """
import os
from fedpers.core.memory import give_back

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20

pieces = [bytes(2000) for _ in range(50_000)]  # 95 MB
pieces[::] = pieces[::100]  # what is left lies everywhere between
before = resident()
give_back()
print(before - resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_what_lies_between_used_pieces_goes_back():
    found = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    assert float(found.stdout) > 50  # MB of the 94 that were freed
