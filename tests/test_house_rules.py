"""What keeps the code readable: small files, short functions, classes abstract or final."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HALVES = {  # the abstract bases, also those of a family in fedpers/families
    "strategies": {
        "PersonalizedStrategy",
        "BlockStrategy",
        "GlobalModelStrategy",
        "MixtureStrategy",
        "SplitStrategy",
        "BodyDescentStrategy",
    },
    "clients": {
        "PersonalizedClient",
        "PeerClient",
        "BlockClient",
        "CoinClient",
        "GlobalModelClient",
        "MixtureClient",
        "OwnModelClient",
        "PrototypeClient",
        "SplitClient",
    },
}
FILES = [p for folder in ("fedpers", "datasets", *HALVES) for p in (ROOT / folder).rglob("*.py")]
METHODS = [p for p in FILES if p.parent.name in HALVES]


def where(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", FILES, ids=where)
def test_files_and_functions_are_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= (120 if path in METHODS else 300)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 60, f"{node.name} is too long"


@pytest.mark.parametrize("path", sorted((ROOT / "fedpers").rglob("*.[ch]")), ids=where)
def test_files_in_c_are_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 300


@pytest.mark.parametrize("path", METHODS, ids=where)
def test_a_method_derives_from_the_abstract_base_only(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.bases]
    bases = [ast.unparse(b) for c in classes for b in c.bases if not c.name.endswith("Config")]
    assert len(bases) == 1 and bases[0] in HALVES[path.parent.name]
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert not [c for c in calls if isinstance(c.func, ast.Name) and c.func.id == "super"]
