"""docs/architecture.md tells the truth: the picture is drawn from the imports, the files are there."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
TABLE = re.findall(r"^\| (.+?) \| `(\S+)` \| (.+?) \|$", PAGE, re.MULTILINE)
PATHS = sorted(set(re.findall(r"`((?:fedpers|datasets|clients|strategies|conf)/[\w/]+\.\w+)`", PAGE)))


@pytest.mark.parametrize("name", ["architecture", "one_round"])
def test_a_picture_is_what_its_script_draws(tmp_path: Path, name: str) -> None:
    fresh = tmp_path / f"{name}.svg"
    script = ROOT / "docs" / "figures" / f"{name}.py"
    subprocess.run([sys.executable, str(script), str(fresh)], check=True)
    drawn = (ROOT / "docs" / "images" / f"{name}.svg").read_text(encoding="utf-8")
    assert fresh.read_text(encoding="utf-8") == drawn, f"run python docs/figures/{name}.py"


@pytest.mark.parametrize(("file", "what"), [row[1:] for row in TABLE if "x.py" not in row[1]])
def test_a_file_holds_what_the_table_says(file: str, what: str) -> None:
    name = what.strip("`")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    names = {n.name for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)}
    targets = [
        t
        for n in tree.body
        if isinstance(n, ast.Assign | ast.AnnAssign)
        for t in (n.targets if isinstance(n, ast.Assign) else [n.target])
    ]
    names |= {t.id for t in targets if isinstance(t, ast.Name)}
    assert name in names


def test_all_files_that_are_named_are_there() -> None:
    assert len(TABLE) > 30
    missing = [p for p in PATHS if not (ROOT / p.replace("/x.py", "/pflego.py")).is_file()]
    assert not missing


def test_every_package_is_in_the_table_or_on_a_route() -> None:
    packages = {p.parent.name for p in (ROOT / "fedpers").glob("*/__init__.py")}
    assert packages <= {p.split("/")[1] for p in PATHS if p.startswith("fedpers/")}


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "adr"
    listed = re.findall(r"^- \[(\d{4})\]\((\1-[^)]+\.md)\): (.+)$", (folder / "index.md").read_text(), re.M)
    titles = {name: title for _, name, title in listed}
    pages = {p.name: p.read_text().partition("\n")[0] for p in folder.glob("0*.md")}
    assert titles.keys() == pages.keys()
    assert all(pages[name].endswith(title) for name, title in titles.items())
