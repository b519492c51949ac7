"""What a method's page says of its clients' memory is what its class does; where it did not help is said."""

import json
import re
from pathlib import Path

import pytest

from fedpers.config.registry import METHODS
from fedpers.flower.client import PersonalizedClient

ROOT = Path(__file__).parents[1]
ROW = re.compile(r"^\| \[(\w+)\]\((\w+\.md)\)", re.MULTILINE)
INDEX = ROOT / "docs" / "methods" / "index.md"
PAGES = {name: f"docs/methods/{page}" for name, page in ROW.findall(INDEX.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("name", METHODS)
def test_a_page_says_whether_clients_remember(name: str) -> None:
    text = (ROOT / PAGES[name]).read_text(encoding="utf-8")
    said = re.findall(r"\*\*State(ful|less)\*\*: ", text)
    remembers = METHODS[name].client_class().initial_state is not PersonalizedClient.initial_state
    assert said == ["ful" if remembers else "less"]


RESULTS = sorted((ROOT / "benchmarks" / "results").glob("benchmark_*.json"))
FLOORS = ("local", "fedavg", "fedavg_ft")


def means(path: Path) -> dict[str, float]:
    """{method: accuracy} of a benchmark's file."""
    rows = json.loads(path.read_text(encoding="utf-8"))["results"]
    return {r["method"]: r["mean"] for r in rows if r["column"].startswith("accuracy, ")}


REAL = re.compile(r"· (fashion_mnist|mnist|emnist|femnist|cifar10|omniglot)\b")
# for convex objectives; measured on their papers' own data
SYNTHETIC = {"acd", "ascd", "asvrcd", "l2sgd", "scd", "svrcd"}


def test_a_verified_method_was_measured_on_real_data():
    files = [json.loads(p.read_text()) for p in (ROOT / "benchmarks" / "results").glob("*.json")]
    real = [f for f in files if REAL.search(f.get("setting", ""))]
    measured = {row["method"].split()[0] for f in real for row in f["results"]}
    verified = {name for name, method in METHODS.items() if method.status == "verified"}
    assert verified - SYNTHETIC <= measured


@pytest.mark.parametrize("name", [m for m in METHODS if m not in FLOORS])
def test_a_page_says_why_its_method_is_below_a_floor_of_the_benchmark(name: str) -> None:
    tables = [means(path) for path in RESULTS]
    below = [t for t in tables if name in t and t[name] < max(t[f] for f in ("local", "fedavg"))]
    text = (ROOT / PAGES[name]).read_text(encoding="utf-8")
    assert tables and (not below or "](../benchmark.md)" in text)
