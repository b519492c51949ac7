"""For tests of numbers that stand in the text of pages and are computed from results files."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from fedpers.results import pages

ROOT = Path(__file__).parents[1]


def record(name: str) -> dict:
    """A file of benchmarks/results."""
    return json.loads((ROOT / pages.RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def values(name: str) -> dict[tuple[str, str], np.ndarray]:
    """{(row's name, column): values by seed}."""
    return {(r["name"], r["column"]): np.array(r["values"]) for r in record(name)["results"]}


def stand_on(page: str, check: Callable[[], Iterable[str]]) -> None:
    """Each string that `check` computes stands in docs/`page`.md, where lines may break between any words."""
    text = " ".join((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").split())
    computed = list(check())
    assert computed
    for said in computed:
        assert said in text
