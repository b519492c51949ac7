"""`fedpers run --help` explains every key of the chosen groups, quickly: without torch, Hydra or Flower."""

import re
import subprocess
import sys
from dataclasses import fields

import pytest
import yaml

from fedpers.app import help as module
from fedpers.app.cli import main
from fedpers.config.run_config import RunConfig
from fedpers.datasets.keys import USED_BY
from fedpers.datasets.partition import PARTITIONS

HEAVY = "import sys; from fedpers.app.cli import main; main(['run', '--help', 'method=fedem']); "
HEAVY += "print([m for m in ('torch', 'hydra', 'flwr', 'matplotlib', 'ray') if m in sys.modules])"


def test_it_imports_nothing_that_takes_long():
    """Torch alone takes longer than the two seconds that help may take."""
    done = subprocess.run(
        [sys.executable, "-c", HEAVY], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert "method.num_components" in done.stdout


def test_every_key_of_a_run_is_explained(capsys):
    assert main(["run", "--help"]) == 0
    text = capsys.readouterr().out
    own = {f.name for f in fields(RunConfig)} - {"method_name", "experiment", "paper"}
    for key in own - module.chosen(module._text("config.yaml"), []).keys():
        assert f"\n{key} " in text, key


@pytest.mark.parametrize(
    ("group", "name"), [("method", "pflego"), ("method", "ppfl"), ("data", "digits"), ("engine", "ray")]
)
def test_every_key_of_a_group_is_explained(group, name, capsys):
    assert main(["run", "-h", f"{group}={name}"]) == 0
    text = capsys.readouterr().out
    content = yaml.safe_load(module._text(f"{group}/{name}.yaml"))
    for key in content.keys() - {"name"}:
        assert f"{group}.{key}" in text
    assert f"{group}={name}: " in text


@pytest.mark.parametrize("partition", PARTITIONS)
def test_every_key_of_a_chosen_partition_is_explained(partition, capsys):
    assert main(["run", "--help", f"data.partition={partition}"]) == 0
    text = capsys.readouterr().out
    for key in [k for k, users in USED_BY.items() if partition in users]:
        assert re.search(rf"^data\.{key} +\S", text, re.M), key


def test_the_keys_of_a_partition_have_their_defaults():
    assert {key: default for key, default, _ in module.of_partition("dirichlet")} == {
        "data.min_size": "1",
        "data.alpha": "0.5",
        "data.balanced": "false",
        "data.num_clusters": "null",
    }


def test_comments_that_go_on_below_belong_to_their_key():
    text = "a: 1   # one\n       # and more\nb:      # group\n  c: x  # inside\nhydra:\n  d: 2  # not ours\n"
    assert list(module.rows(text, "m.")) == [
        ("m.a", "1", "one and more"),
        ("m.b", "", "group"),
        ("m.b.c", "x", "inside"),
    ]


def test_a_wrong_choice_is_one_message(capsys):
    assert main(["run", "--help", "method=fedavgg"]) == 2
    assert "did you mean 'fedavg'" in capsys.readouterr().err
