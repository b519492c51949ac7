"""What an engine needs of the machine is looked at before it starts."""

import re
import subprocess
import sys
import time

import pytest

from fedpers.app.backends import check_resources, resources_there
from fedpers.config.engine import EngineConfig
from fedpers.core.errors import ConfigError

SMALL, LARGE = {"CPU": 4, "GPU": 0}, {"CPU": 64}
GRAPHIC = {"CPU": 2, "GPU": 2}


@pytest.mark.parametrize(
    ("options", "machines", "said"),
    [
        ({"num_cpus": 64}, [SMALL], "engine.num_cpus=64: this process was granted 4 CPUs.*choose at most 4"),
        (
            {"num_gpus": 0.5},
            [SMALL],
            "engine.num_gpus=0.5: this process was granted 0 GPUs.*choose at most 0",
        ),
        ({"num_cpus": 1.5}, [SMALL], "engine.num_cpus=1.5: of more than one.*choose 1"),
        ({"num_gpus": 3, "address": "a:1"}, [SMALL, GRAPHIC], "the largest machine of a:1 has 2 GPUs"),
        ({"num_cpus": 32, "num_gpus": 1, "address": "a:1"}, [LARGE, GRAPHIC], "no machine has both"),
        ({"num_cpus": 1}, [], "this process was granted 0 CPUs"),
    ],
)
def test_an_actor_that_no_machine_holds_is_refused(options, machines, said):
    with pytest.raises(ConfigError, match=said):
        check_resources(EngineConfig("ray", **options), machines)


@pytest.mark.parametrize(
    ("options", "machines"),
    [
        ({"num_cpus": 4}, [SMALL]),
        ({"num_cpus": 0.25}, [SMALL]),
        ({"num_cpus": 2, "num_gpus": 0.5}, [SMALL, GRAPHIC]),
        ({"num_cpus": 64}, [SMALL, LARGE]),
    ],
)
def test_an_actor_that_some_machine_holds_is_admitted(options, machines):
    check_resources(EngineConfig("ray", **options), machines)


def test_this_machine_is_counted_as_ray_counts_it():
    (here,) = resources_there(None)
    assert here["CPU"] >= 1


@pytest.mark.ray
@pytest.mark.parametrize("word", ["engine.num_cpus=640", "engine.num_gpus=64", "engine.address=127.0.0.1:1"])
def test_the_command_ends_at_once_with_one_message(tmp_path, word):
    began = time.monotonic()
    words = ["run", "engine=ray", word, "method=fedavg", "rounds=1", f"out={tmp_path / 'a'}"]
    command = [sys.executable, "-m", "fedpers", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stdout + done.stderr
    assert re.search(rf"fedpers: error: {word.partition('=')[0]}=", done.stderr)
    assert time.monotonic() - began < 200


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "[::1]:1"])
def test_ray_is_not_asked_about_an_address_where_nobody_listens(monkeypatch, address):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray waits for minutes"))
    with pytest.raises(ConfigError, match="no Ray cluster there"):
        resources_there(address)
