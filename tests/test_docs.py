"""Commands in the documentation are commands that exist, with overrides that are accepted."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedpers.app.cli import parser
from fedpers.bench.main import parser as bench_parser
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
    found = [(args, page) for page in reversed(PAGES) for args in commands(page, program)]
    once = {tuple(args): page for args, page in found}  # a command may be on several pages
    return [pytest.param(list(a), id=f"{page.stem}: {' '.join(a)}"[:100]) for a, page in once.items()]


@pytest.mark.parametrize("args", cases("fedpers"))
def test_a_fedpers_command_in_the_documentation_is_accepted(args: list[str]) -> None:
    if any("<" in word or "my_method" in word for word in args):
        pytest.skip("has a placeholder, or a method that the page writes")
    if args[0] == "bench":  # its arguments are read by a parser of its own
        bench_parser().parse_args(args[1:])
        return
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


def test_a_program_of_benchmarks_in_the_documentation_exists() -> None:
    found = set()
    for page in PAGES:
        for _, name in re.findall(r"python (-m )?benchmarks[./](\w+)", page.read_text(encoding="utf-8")):
            found.add(name)
            assert (ROOT / "benchmarks" / f"{name}.py").is_file(), (page.name, name)
    assert len(found) > 10


def test_links_between_pages_lead_somewhere() -> None:
    link = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")
    for page in PAGES:
        for target in link.findall(page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_the_readme_starts_with_a_run() -> None:
    assert next(commands(ROOT / "README.md", "fedpers"))[0] == "run"


def test_the_index_lists_every_method_as_the_registry_has_it():
    """Each once, with its summary, paper and status."""
    from fedpers.config.registry import METHODS

    text = (ROOT / "docs" / "methods" / "index.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(\w+)\]\(\w+\.md\) \| (.*) \| (.*) \| (\w+) \|$", text, re.M)
    assert len(rows) == len(METHODS)
    assert {name: rest for name, *rest in rows} == {
        name: [m.summary, m.paper, m.status] for name, m in METHODS.items()
    }


def test_a_methods_page_has_the_status_of_the_registry():
    """Where a page says one; FedOpt's three methods have a page together."""
    from fedpers.config.registry import METHODS

    together = {"fedopt": ("fedavgm", "fedadam", "fedyogi")}
    found = 0
    for page in sorted((ROOT / "docs" / "methods").glob("*.md")):
        for said in re.findall(r"Status:\s+(\w+)", page.read_text(encoding="utf-8")):
            for name in together.get(page.stem, (page.stem,)):
                found += 1
                assert said == METHODS[name].status, page.name
    assert found > 20


def test_the_readme_shows_lines_of_the_template():
    """The method in the README is code that runs: tests/test_template.py."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = [c for c in re.findall(r"```python\n(.*?)```", text, re.S) if "def answer" in c]
    folder = ROOT / "docs" / "template"
    template = "".join(p.read_text(encoding="utf-8") for p in folder.glob("*.py")).splitlines()
    for line in filter(str.strip, code.splitlines()):
        assert line.split("  # a flwr")[0] in template, line


def test_the_five_papers_numbers_are_those_of_their_files():
    """ "ours" and "paper" of each row of the README's table stand in the file that the row links."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text[text.index("## The five papers") : text.index("## Your own method")]
    rows = re.findall(r"\[\d+ seeds\]\((.*?)\) \| (.*?) \| (.*?) \|$", table, re.M)
    assert len(rows) == 5
    for file, ours, paper in rows:
        results = json.loads((ROOT / file).read_text(encoding="utf-8"))["results"]
        digits = len(ours.split()[0].split(".")[1])
        found = [r for r in results if f"{r['mean']:.{digits}f}" == ours.split()[0]]
        assert found, (file, ours)
        stated = found[0]["paper"]
        assert stated is None or f"{stated:g}" == f"{float(paper.split()[0]):g}", (file, paper)
        assert max(r["runs"] for r in found) >= 5, file


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_first_pages_have_the_demonstrations_numbers(page):
    rows = json.loads((ROOT / "benchmarks" / "results" / "demo.json").read_text(encoding="utf-8"))["results"]
    chosen = {r["method"]: r for r in rows if r["column"] == "accuracy, round chosen on validation"}
    text = (ROOT / page).read_text(encoding="utf-8")
    for method, name in {"federico": "FedeRiCo", "fedsoft": "FedSoft", "local": "local training"}.items():
        assert f"{name} {chosen[method]['mean']:.1f} ± {chosen[method]['std']:.1f} %" in text
    assert f"FedAvg {chosen['fedavg']['mean']:.1f} ± {chosen['fedavg']['std']:.1f} %" in text
    assert min(r["runs"] for r in chosen.values()) >= 5
