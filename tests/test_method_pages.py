"""What a method's page says of its clients' memory is what its class does; where it did not help is said."""

import json
import re
from pathlib import Path

import pytest

from benchmarks.architectures import joined
from fedpers.config.registry import METHODS
from fedpers.flower.client import PersonalizedClient
from fedpers.results.method_tables import benchmark

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


UNMEASURED = {"central", "fedbn"}  # all data in one place; a model that normalises


@pytest.mark.parametrize("page", sorted({*PAGES.values()}))
def test_a_page_has_what_a_reader_looks_for(page: str) -> None:
    """Settings, a table of numbers, what departs from the paper, when to use the method and when not."""
    text, name = (ROOT / page).read_text(encoding="utf-8"), Path(page).stem
    assert "**When (not) to use it.**" in text or "## When (not) to use it" in text
    assert re.search(r"^\| (key|keys|name|layer)\b|^\| `|^\| key", text, re.MULTILINE), "settings"
    assert re.search(r"Deviations|deviations", text) or name in ("local", "central")
    assert re.search(r"<!-- results: (benchmark of|[\w]+\.json)|-results\.md\)", text) or name in UNMEASURED


def test_rows_of_the_benchmark_are_those_of_its_files(tmp_path: Path) -> None:
    """Two methods of three that share the first place, and one that no file has."""
    score, above = "accuracy, round chosen on validation", "above local"
    rows = [
        ("a", score, 90.0, 1.25),
        ("b", score, 90.0, 0.0),
        ("c", score, 80.0, None),
        ("a", above, -2.0, 0.5),
    ]
    results = [{"method": m, "column": c, "mean": mean, "std": std} for m, c, mean, std in rows]
    record = {"changed": ["data=fashion_mnist", "data.partition=rotations"], "results": results}
    folder = tmp_path / "benchmarks" / "results"
    folder.mkdir(parents=True)
    (folder / "benchmark_x.json").write_text(json.dumps(record))
    text = benchmark("a, c, none", tmp_path, "..")
    cells = [line.strip("| ").split(" | ") for line in text.splitlines()[2:4]]
    assert [(method, score, above, place) for _, method, score, above, *_, place in cells] == [
        ("a", "90.0 ± 1.2", "-2.0 ± 0.5", "1 of 3"),
        ("c", "80.0", "-", "3 of 3"),
    ]
    assert "Fashion-MNIST: four rotations" in text and "](../docs/benchmark.md)" in text


def test_every_method_has_a_row_in_the_matrix_of_architectures() -> None:
    text = (ROOT / "benchmarks" / "results" / "architectures.json").read_text(encoding="utf-8")
    assert [row["method"] for row in json.loads(text)["rows"]] == sorted(METHODS)


def test_what_was_found_now_is_joined_with_the_other_methods_rows() -> None:
    """Letters follow the order of the rows, and a reason that nobody has any more goes."""
    old = [{"method": "a", "mlp": "a", "lstm": "ok"}, {"method": "c", "mlp": "a", "lstm": "b"}]
    refused = [{"refused": "a", "why": "no classes"}, {"refused": "b", "why": "tokens"}]
    new = {"a": {"mlp": "ok", "lstm": "ok"}, "b": {"mlp": "ok", "lstm": "tokens"}}
    rows, reasons = joined(old, refused, new)
    assert rows == [
        {"method": "a", "mlp": "ok", "lstm": "ok"},
        {"method": "b", "mlp": "ok", "lstm": "a"},
        {"method": "c", "mlp": "b", "lstm": "a"},
    ]
    assert reasons == [{"refused": "a", "why": "tokens"}, {"refused": "b", "why": "no classes"}]
