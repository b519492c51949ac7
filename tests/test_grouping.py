"""Tests that share what is made once for a module run in one worker: see the bound of pytest in pyproject."""

import subprocess
import sys
from pathlib import Path

TESTS = """
import os
import pytest
from pathlib import Path

@pytest.mark.xdist_group("one")
@pytest.mark.parametrize("k", range(6))
def test_it(k):
    (Path(__file__).parent / f"worker_{os.environ['PYTEST_XDIST_WORKER']}").touch()

def test_alone():
    pass
"""


def test_a_group_stays_in_one_worker(tmp_path: Path) -> None:
    (tmp_path / "test_these.py").write_text(TESTS)
    (tmp_path / "pytest.ini").touch()
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(tmp_path.glob("worker_*"))) == 1, done.stdout
