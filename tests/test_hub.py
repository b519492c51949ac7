"""Hugging Face's hub out of reach: one message, at once, and nothing of the process is changed by it."""

import importlib.util
import logging
import os
import subprocess
import sys
import types

import pytest

from fedpers.core.hub import HOLDERS, LOGGER, asked_once

NOWHERE = "http://127.0.0.1:9"  # nobody listens on the port `discard`
LOG = logging.getLogger(LOGGER)


class ConnectError(Exception):
    """As httpx calls it."""


class ReadTimeout(Exception):
    """A connection that was slow once."""


@pytest.fixture
def constants(monkeypatch):
    """Stands for the hub's own constants."""
    made = types.SimpleNamespace(HF_HUB_OFFLINE=False, ENDPOINT=NOWHERE)
    monkeypatch.setitem(sys.modules, HOLDERS[0], made)
    monkeypatch.delitem(sys.modules, HOLDERS[1], raising=False)
    return made


def report(error):
    """As the library reports a failed request before it waits and tries again."""
    try:
        raise error
    except Exception as raised:
        LOG.warning("'%s' thrown while requesting HEAD", raised)
        LOG.warning("Retrying in 1s [Retry 1/5].")
        return raised


def test_the_first_request_without_a_connection_turns_the_hub_off_for_the_block(constants, caplog):
    with caplog.at_level(logging.WARNING), asked_once() as reach:
        error = report(ConnectError("refused"))
        assert constants.HF_HUB_OFFLINE and NOWHERE in reach.hint(error)
    assert not constants.HF_HUB_OFFLINE and not caplog.records and not LOG.filters


def test_a_slow_connection_is_tried_again_as_ever(constants, caplog):
    with caplog.at_level(logging.WARNING), asked_once() as reach:
        error = report(ReadTimeout("slow"))
        assert not constants.HF_HUB_OFFLINE and reach.hint(error) == ""
    assert len(caplog.records) == 2


COMMANDS = {
    "datasets": (["data=huggingface", "data.name=no_such_set"], "data.name=no_such_set", "data.name=FOLDER"),
    "timm": (
        ["model=timm", "model.name=resnet10t", "model.kwargs={pretrained:true}"],
        "model.name=resnet10t",
        "model.weights=FILE",
    ),
    "huggingface_hub": (["model=module", "model.path=mine:net"], "model.path=mine:net", "model.weights=FILE"),
}
MINE = """
from huggingface_hub import hf_hub_download

def net():
    hf_hub_download("no/such", "model.safetensors")
"""


@pytest.mark.parametrize("library", COMMANDS)
@pytest.mark.parametrize("offline", ["0", "1"])
def test_without_a_network_a_run_ends_in_one_line(library, offline, tmp_path):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    (tmp_path / "mine.py").write_text(MINE)
    words, thing, remedy = COMMANDS[library]
    away = {"HF_ENDPOINT": NOWHERE, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": offline}
    command = [
        sys.executable,
        "-m",
        "fedpers",
        "run",
        "method=fedavg",
        "data.num_clients=3",
        *words,
        "out=run",
    ]
    options = {"cwd": tmp_path, "env": os.environ | away, "capture_output": True, "text": True}
    done = subprocess.run(command, timeout=300, **options)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2 and line.startswith(f"fedpers: error: {thing}: cannot be")
    assert "is out of reach" in line and remedy in line
