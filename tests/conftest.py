"""What all tests share."""

import os
import sys
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


@pytest.fixture(scope="session")
def data_root() -> Path:
    """A folder with the real data sets: $FEDPERS_DATA."""
    named = os.environ.get("FEDPERS_DATA")
    if not named:
        pytest.skip("no data sets: set FEDPERS_DATA to a folder that has them")
    return Path(named)
