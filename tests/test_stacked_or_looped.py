"""The table of docs/own_models.md that says which modules are stacked, row by row as it happens."""

from pathlib import Path

import pytest

from fedpers.engines.runner import HUGE, LONELY, SLOWER, WIDE
from fedpers.learning.model import build_model

PAGE = Path(__file__).parents[1] / "docs" / "own_models.md"
SHAPE = (1, 4, 4)
NETS = {  # the row's first words, and a module of its kind
    "dense layers": ("tests.own_nets:Encoder", {}),
    "frozen layers": ("tests.own_nets:Plain", {"lora": {"rank": 2}}),
    "`nn.Dropout`": ("tests.own_nets:Dropping", {}),
    "BatchNorm": ("tests.own_nets:CNN", {"kwargs": {"p": 0.0}}),
    "LSTM": ("tests.own_nets:Rows", {}),
    "such layers": ("tests.own_nets:Rows", {"kwargs": {"between": 0.5}}),
    "dropout as a function": ("tests.own_nets:Functional", {}),
    "code that looks": ("tests.own_nets:Branching", {}),
}
ENGINES = {  # what the engine decides, by size and device
    "convolutions that": SLOWER,
    "a minibatch": WIDE,
    "clients of": LONELY,
    "so many": HUGE,
}


def rows():
    table = PAGE.read_text(encoding="utf-8").partition("| the module has |")[2].splitlines()[2:]
    cells = [line.strip("|").split(" | ") for line in table[: table.index("")]]
    return {first.strip(): (how.strip(), why.strip()) for first, how, why in cells}


def test_each_row_has_a_module():
    known = (*NETS, *ENGINES)
    assert [sum(row.startswith(k) for k in known) for row in rows()] == [1] * len(known)


@pytest.mark.parametrize("kind", NETS)
def test_a_row_is_what_happens(kind):
    how, why = next(v for k, v in rows().items() if k.startswith(kind))
    path, options = NETS[kind]
    net = build_model("module", input_shape=SHAPE, num_outputs=3, task="classification", path=path, **options)
    assert (net.network.alone == "") == how.startswith("stacked")
    assert net.network.alone.startswith(why) if net.network.alone else True
    assert net.network.draws == ("Dropout`" in kind)


@pytest.mark.parametrize("kind", ENGINES)
def test_what_the_engine_says_is_on_the_page(kind):
    how, why = next(v for k, v in rows().items() if k.startswith(kind))
    assert how == "one by one" and ENGINES[kind].startswith(why)
