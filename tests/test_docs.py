"""Commands in the documentation are commands that exist, with overrides that are accepted."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedpers.app.cli import parser
from fedpers.config import compose

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(?:bash|sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
TARGET = re.compile(r"^([a-z-]+):.*## ", re.MULTILINE)


def commands(page: Path, program: str) -> Iterator[list[str]]:
    """The arguments of each call of `program` in a page's shell blocks."""
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            if words[:1] == [program]:
                yield words[1:]


def cases(program: str) -> list[pytest.param]:
    found = [(page, args) for page in PAGES for args in commands(page, program)]
    return [pytest.param(a, id=f"{page.stem}: {' '.join(a)}"[:100]) for page, a in found]


@pytest.mark.parametrize("args", cases("fedpers"))
def test_a_fedpers_command_in_the_documentation_is_accepted(args: list[str]) -> None:
    if any("<" in word for word in args):
        pytest.skip("has a placeholder")
    if args[0] != "run":
        parser().parse_args(args)
        return
    own = ("out=", "resume=")  # name folders, which need not exist here
    overrides = [a for a in args[1:] if not a.startswith(("-", *own))]
    compose.prepare(overrides, sweep="-m" in args or "--multirun" in args)


@pytest.mark.parametrize("args", cases("make"))
def test_a_make_target_in_the_documentation_exists(args: list[str]) -> None:
    targets = TARGET.findall((ROOT / "Makefile").read_text(encoding="utf-8"))
    assert set(args) <= set(targets)


def test_links_between_pages_lead_somewhere() -> None:
    link = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")
    for page in PAGES:
        for target in link.findall(page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_the_readme_starts_with_a_run() -> None:
    assert next(commands(ROOT / "README.md", "fedpers"))[0] == "run"


def test_the_readme_lists_every_method_with_its_status():
    """Names, order aside, and statuses of the table are those of the registry."""
    from fedpers.config.registry import METHODS

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text[text.index("## Methods") : text.index("## Your own method")]
    row = re.compile(r"^\| \[(\w+)\]\(docs/methods/\w+\.md\) \|.*\| (verified|runs|untried) \|", re.M)
    found = dict(row.findall(table))
    assert found == {name: method.status for name, method in METHODS.items()}
