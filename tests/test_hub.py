"""Hugging Face's hub out of reach: one message, at once, and nothing of the process is changed by it."""

import importlib.util
import json
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


FORKS = """
import json, os, sys
import torch, fedpers.app.cli, fedpers.app.run, fedpers.config.compose
codes = {}
for name, words in json.loads(sys.argv[1]).items():
    if not (child := os.fork()):
        os.makedirs(name)
        os.dup2(os.open(name + "/errors", os.O_WRONLY | os.O_CREAT), 2)
        os.dup2(2, 1)
        os.environ["HF_HUB_OFFLINE"] = name[0]
        words = ["run", "method=fedavg", "data.num_clients=3", *words, "out=run" + name]
        os._exit(fedpers.app.cli.main(words))
    codes[name] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(json.dumps(codes))
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """(folder, exit code by command): each in a process of its own, which reads the hub's settings anew."""
    folder = tmp_path_factory.mktemp("hub")
    (folder / "mine.py").write_text(MINE)
    words = {offline + library: COMMANDS[library][0] for offline in "01" for library in COMMANDS}
    env = os.environ | {"HF_ENDPOINT": NOWHERE, "HF_HOME": str(folder)}
    command = [sys.executable, "-c", FORKS, json.dumps(words)]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


@pytest.mark.parametrize("library", COMMANDS)
@pytest.mark.parametrize("offline", ["0", "1"])
def test_without_a_network_a_run_ends_in_one_line(library, offline, ended):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    folder, codes = ended
    _, thing, remedy = COMMANDS[library]
    (line,) = (folder / (offline + library) / "errors").read_text().splitlines()
    assert codes[offline + library] == 2 and line.startswith(f"fedpers: error: {thing}: cannot be")
    assert "is out of reach" in line and remedy in line
