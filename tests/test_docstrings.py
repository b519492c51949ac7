"""The examples in docstrings do what they show."""

import doctest
import importlib
from pathlib import Path

import pytest

import fedpers

PACKAGE = Path(fedpers.__file__).parent
EXAMPLES = [p for p in sorted(PACKAGE.rglob("*.py")) if ">>> " in p.read_text(encoding="utf-8")]


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 8


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_the_examples_of_a_module(path: Path) -> None:
    name = ".".join(["fedpers", *path.relative_to(PACKAGE).with_suffix("").parts])
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
