"""Pages stay short enough to be read: words outside of generated parts, lines of two pages."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GENERATED = re.compile(r"<!-- (results|methods): .*?<!-- end(?: of results)? -->", re.S)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OF_METHODS = {p.stem for p in (ROOT / "strategies").glob("*.py")} | {"unified"}
LINES = {"README.md": 130, "docs/performance.md": 130}


def words(page: Path) -> int:
    """Those that somebody wrote: tables and boxes that a program fills in are looked up, not read."""
    text = GENERATED.sub("", page.read_text(encoding="utf-8"))
    lines = text.splitlines()
    if (
        page.name == "architecture.md"
    ):  # its table of all files is compared with the code: test_architecture.py
        lines = [line for line in lines if not line.startswith("| ")]
    return len(" ".join(lines).split())


def test_generated_parts_are_no_words(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("one two\n<!-- results: x -->\nthree\n<!-- end of results -->\nfour\n")
    assert words(page) == 3


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_a_page_is_short(page: Path) -> None:
    method = page.parent.name == "methods" and page.stem in OF_METHODS
    assert words(page) <= (1500 if method else 2000), "move what few need to a page of its own"


@pytest.mark.parametrize(("page", "most"), LINES.items())
def test_first_pages_have_few_lines(page: str, most: int) -> None:
    assert len((ROOT / page).read_text(encoding="utf-8").splitlines()) <= most


@pytest.mark.parametrize("name", sorted(OF_METHODS - {"unified"}))
def test_a_method_page_has_its_box(name: str) -> None:
    """Methods of the unified framework share a page, whose objectives stand in the place of a box."""
    page = ROOT / "docs" / "methods" / f"{name}.md"
    if not page.is_file():
        text = (ROOT / "docs" / "methods" / "unified.md").read_text(encoding="utf-8")
        assert f"| `{name}` |" in text
    else:
        assert f"<!-- results: box of {name} -->" in page.read_text(encoding="utf-8")
