"""What all tests share."""

import os
import subprocess
import sys
import tempfile
from contextlib import redirect_stderr
from pathlib import Path

import pytest
import torch

os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")  # as a run does; MKL reads it at its first product
torch.set_num_threads(1)

# Flower and TensorBoard import absl, whose log handler keeps the stderr of that moment and closes
# it when Hydra sets up logging anew: were that pytest's, every later test of the process would fail.
with redirect_stderr(sys.__stderr__):
    import absl.logging  # noqa: F401

UNPACK = Path(__file__).resolve().parents[2] / "shared" / "data" / "unpack.py"


@pytest.fixture(scope="session")
def data_root() -> Path:
    """A folder with the real data sets: $FEDPERS_DATA, or laid out once from a copy beside us."""
    named = os.environ.get("FEDPERS_DATA")
    if named:
        return Path(named)
    if not UNPACK.is_file():
        pytest.skip("no data sets: set FEDPERS_DATA to a folder that has them")
    user = os.getuid() if hasattr(os, "getuid") else "user"
    dest = Path(tempfile.gettempdir()) / f"fedpers-test-data-{user}"
    subprocess.run([sys.executable, str(UNPACK), str(dest)], check=True, capture_output=True)
    return dest
