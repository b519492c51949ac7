"""Each line of a paper's box, tagged [S1].. [C1].., is done by exactly one line of code.

Where methods share their round, its lines are those of the family's base (`SHARED`).
"""

import ast
import io
import re
import tokenize
from collections import Counter
from pathlib import Path

import pytest

from fedpers.config.registry import METHODS

ROOT = Path(__file__).parents[1]
SHARED = {  # base: file of its round, or of what its clients do in one
    "SplitStrategy": "fedpers/families/split_models/strategy.py",
    "PrototypeClient": "fedpers/families/prototypes.py",
}
TAG = re.compile(r"\[[SC]\d+\]")
OWN = {  # method: file name of its two halves
    name: method.strategy.partition(":")[0].removeprefix("fedpers.strategies.")
    for name, method in METHODS.items()
    if method.strategy.startswith("fedpers.strategies.")
}


def box(path: Path) -> set[str]:
    """The tags in a module's docstring."""
    return set(TAG.findall(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""))


def code_tags(path: Path) -> Counter[str]:
    """The tags in comments that end a line of code."""
    text = path.read_text(encoding="utf-8")
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    trailing = (t for t in tokens if t.type == tokenize.COMMENT and t.line[: t.start[1]].strip())
    return Counter(tag for token in trailing for tag in TAG.findall(token.string))


def bases(path: Path) -> set[str]:
    """The classes that a file's classes derive from."""
    classes = [
        n for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.ClassDef)
    ]
    return {ast.unparse(base) for c in classes for base in c.bases}


@pytest.mark.parametrize("name", OWN)
def test_each_line_of_the_box_is_done_once(name: str) -> None:
    server, client = (ROOT / folder / f"{OWN[name]}.py" for folder in ("strategies", "clients"))
    lines, done = box(server), code_tags(server) + code_tags(client)
    for base in (bases(server) | bases(client)) & SHARED.keys():
        done += code_tags(ROOT / SHARED[base])
    assert any(tag.startswith("[S") for tag in lines), f"{server.name}: no tagged line in the box"
    assert any(tag.startswith("[C") for tag in lines), f"{server.name}: no tagged line of a client"
    assert done == dict.fromkeys(lines, 1), {
        "never done": sorted(lines - done.keys()),
        "not in the box": sorted(done.keys() - lines),
        "done more than once": sorted(tag for tag, n in done.items() if n > 1),
    }


def test_all_registered_methods_and_all_files_are_covered() -> None:
    files = {path.stem for path in (ROOT / "strategies").glob("*.py")}
    halves = {path.stem for path in (ROOT / "clients").glob("*.py")}
    assert len(OWN) == len(METHODS) and set(OWN.values()) == files == halves
