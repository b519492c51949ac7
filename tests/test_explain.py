"""What a run says of its local steps is what took them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedpers.app.cli import main
from fedpers.app.run import execute
from fedpers.config import compose
from fedpers.learning.kernels import native
from fedpers.learning.kernels.library import library

WORDS = ["data.num_clients=4", "data=digits"]
OWN = "model=module model.path=tests.test_explain:Net"
CASES = [  # overrides, FEDPERS_NATIVE, what is said
    ("fedavg", "1", "C, clients in a stack"),
    ("fedavg engine.runner=loop", "1", "C, clients one by one (engine.runner=loop)"),
    ("fedavg", "0", "torch, clients in a stack (FEDPERS_NATIVE=0)"),
    ("fedavg engine.runner=loop", "0", "torch, clients one by one (FEDPERS_NATIVE=0; engine.runner=loop)"),
    (f"fedavg {OWN}", "1", "torch, clients in a stack (the C kernels know dense networks and small "
     "convolutions of this package)"),
    ("fedper", "1", "C, clients in a stack"),
]  # fmt: skip


class Net(torch.nn.Sequential):
    """A module that no kernel knows."""

    def __init__(self, num_outputs: int = 10) -> None:
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.GELU(), torch.nn.Linear(8, 10))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often a kernel ran, and how often torch differentiated, counted where nothing else counts."""
    found = {"C": 0, "torch": 0}

    def counted(kind: str, function: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            found[kind] += 1
            return function(*args, **options)

        return call

    monkeypatch.setattr(native, "call", counted("C", native.call))
    monkeypatch.setattr(torch.autograd, "grad", counted("torch", torch.autograd.grad))
    monkeypatch.setattr(torch.func, "grad", counted("torch", torch.func.grad))
    return found


def said(words: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(["explain", *words.split(), *WORDS]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(("words", "native_", "line"), CASES)
def test_the_line_is_what_ran(
    words: str,
    native_: str,
    line: str,
    calls: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FEDPERS_NATIVE", native_)
    library.cache_clear()
    try:
        if native_ == "1" and library() is None:
            pytest.skip("no compiler")
        assert said(words, capsys)[-1] == f"taken by: {line}"
    finally:
        library.cache_clear()
    kinds = [kind for kind, n in calls.items() if n]
    assert kinds in (
        [line.split(",")[0]],
        [] if line.startswith("torch") else ["C"],
    )  # written out, torch asks nobody


def test_an_optimiser_that_no_kernel_knows_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said("fedavg method.local.optimizer=tests.own_optimizer:lion", capsys)
    assert "torch" in lines[-1] and "local.optimizer=tests.own_optimizer:lion" in lines[-1]
    assert "g = ∇f(w)" in lines[2]


def test_a_step_of_a_methods_own_is_said_to_be_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert any("clients/l2sgd.py" in line for line in said("l2sgd", capsys))


def test_the_summary_has_the_same_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = said("fedavg method.local.momentum=0.5", capsys)[-1]
    summary = execute(
        compose.load(["method=fedavg", "method.local.momentum=0.5", "rounds=1", *WORDS]), tmp_path
    )
    assert line == f"taken by: {summary['local_step']}"
    assert json.loads((tmp_path / "summary.json").read_text())["local_step"] == summary["local_step"]


def test_a_mistake_is_a_mistake_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "fedavgg"]) == 2
    assert "did you mean 'fedavg'" in capsys.readouterr().err


def test_a_program_of_a_methods_own_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """APFL: steps of w and of its mixture with the own model, in the paper's order."""
    if library() is None:
        pytest.skip("no compiler: torch's way of it is no program")
    lines = [line.strip() for line in said("apfl", capsys)]
    assert lines[1] == "step:" and {line.partition(" =")[0] for line in lines[2:-2]} == {"x1", "g", "w", "β"}
