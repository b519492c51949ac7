"""Tables of the documentation are those of the files in benchmarks/results, and the map is complete."""

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy import stats

from fedpers.bench import table as bench
from fedpers.core.documents import PART, fill, filled, table
from fedpers.results import pages

ROOT = Path(__file__).parents[1]
MAP = yaml.safe_load((ROOT / pages.MAP).read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", pages.pages(ROOT), ids=lambda p: p.name)
def test_a_page_shows_what_its_files_say(page):
    text = page.read_text(encoding="utf-8")
    assert filled(text, pages.renderer(page, ROOT)) == text, "run `make tables`"
    tables = lambda name: bench.render(ROOT / pages.RESULTS) if name == bench.OURS else None  # noqa: E731
    assert filled(text, tables) == text, "run `fedpers bench`"


def test_every_mark_is_somebodys():
    for page in pages.pages(ROOT):
        for _, name, _ in PART.findall(page.read_text(encoding="utf-8")):
            assert name in (bench.OURS, bench.PEERS) or pages.renderer(page, ROOT)(name) is not None


def test_every_experiment_of_a_paper_is_on_the_map():
    known = {entry.get("experiment") for entries in MAP.values() for entry in entries}
    files = {p.stem: yaml.safe_load(p.read_text()) for p in (ROOT / "conf" / "experiment").glob("*.yaml")}
    assert known - {None} <= files.keys()
    assert {name for name, content in files.items() if "paper" in content} <= known
    assert set(MAP) == {"pflego", "ppfl", "fedsoft", "federico", "unified"}


def test_an_entry_without_a_file_says_why_or_what():
    for entry in (e for entries in MAP.values() for e in entries):
        assert entry["what"] and entry["paper"]
        assert entry["why"] or entry.get("ours")
        assert not entry.get("ours") or (ROOT / pages.RESULTS / entry["file"]).is_file()


def test_every_file_of_an_experiment_is_shown():
    text = "".join(page.read_text(encoding="utf-8") for page in pages.pages(ROOT))
    for path in (ROOT / pages.RESULTS).glob("*.json"):
        if "setting" in json.loads(path.read_text(encoding="utf-8")):
            assert f"<!-- results: {path.name} -->" in text


def test_the_differences_on_fresh_seeds_are_those_of_the_file():
    """Means and Student's 95 % intervals of PFLEGO minus local training, paired by seed."""
    rows = json.loads((ROOT / pages.RESULTS / "fashion_mnist_seeds.json").read_text(encoding="utf-8"))[
        "results"
    ]
    values = {(r["method"], r["column"]): np.array(r["values"]) for r in rows}
    said = []
    for column in ("accuracy, round chosen on validation", "worst_decile"):
        gaps = values["pflego", column] - values["local", column]
        reach = stats.t.ppf(0.975, len(gaps) - 1) * gaps.std(ddof=1) / len(gaps) ** 0.5
        said.append((len(gaps), gaps.mean(), gaps.mean() - reach, gaps.mean() + reach))
    (n, mean, low, high), (_, worst, least, most) = said
    text = " ".join((ROOT / "docs/results.md").read_text(encoding="utf-8").split())
    assert n == 20 and f"difference {mean:.2f} points, 95 % interval {low:.2f} to {high:.2f}" in text
    assert f"{worst:.1f} points better off under PFLEGO ({least:.1f} to {most:.1f})" in text


def test_federicos_page_has_the_difference_of_the_file():
    path = ROOT / pages.RESULTS / "federico_trial_cifar10.json"
    rows = {r["method"]: r for r in json.loads(path.read_text(encoding="utf-8"))["results"]}
    assert rows["federico"]["seeds"] == rows["local"]["seeds"] and len(rows["local"]["seeds"]) == 20
    gaps = np.array(rows["federico"]["values"]) - np.array(rows["local"]["values"])
    reach = stats.t.ppf(0.975, len(gaps) - 1) * gaps.std(ddof=1) / len(gaps) ** 0.5
    low, mean, high = gaps.mean() - reach, gaps.mean(), gaps.mean() + reach
    text = " ".join((ROOT / "docs/methods/federico.md").read_text(encoding="utf-8").split())
    assert (gaps > 0).all() and "above Local for each of the twenty" in text
    assert f"by {mean:.1f} points on average (95 % interval {low:.1f} to {high:.1f}" in text


# ---- the mechanism ------------------------------------------------------------------------------

END = "<!-- end of results -->"
PAGE = f"a\n<!-- results: x -->\nold\n{END}\nb\n<!-- results: y -->\nkept\n{END}\n"


def test_a_part_is_replaced_and_others_are_left(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    render = {"x": "new"}.get
    assert fill(page, render) and not fill(page, render)
    assert page.read_text() == PAGE.replace("old", "\nnew\n")


def test_every_cell_of_a_table_is_full_reduced_or_not_run(tmp_path):
    """Of files at full size and reduced, the full one; of methods that the paper leaves out nothing."""
    conf, out = tmp_path / "conf" / "experiment", tmp_path / pages.RESULTS
    conf.mkdir(parents=True)
    out.mkdir(parents=True)
    both = {"High": [1.0, 0.1], "Low": [2.0, 0.1]}
    first = {"columns": {"K2": "High", "K9": "Low"}, "values": {"m": both, "o": both}}
    second = {"column": "Only", "values": {"m": {"Only": [1.0, 0.1]}, "p": {"Only": [1.0, 0.1]}}}
    (conf / "t_1.yaml").write_text(yaml.safe_dump({"paper": first}))
    (conf / "t_2.yaml").write_text(yaml.safe_dump({"paper": second}))
    (out / "t_1.json").write_text(json.dumps({**record(), "changed": []}))
    (out / "t_1_reduced.json").write_text(json.dumps(record()))
    (out / "t_2_small.json").write_text(json.dumps(record(column="Only", seeds=[4])))
    assert pages.cells("t_", tmp_path, "..").splitlines() == [
        "| column | m | o | p | all methods at full size |",
        "|---|---|---|---|---|",
        "| High | [full](../benchmarks/results/t_1.json), seeds 0, 1 | not run |  "
        "| `fedpers run -m +experiment=t_1 data.classes_per_client=2` |",
        "| Low | not run | not run |  | `fedpers run -m +experiment=t_1 data.classes_per_client=9` |",
        "| Only | [reduced](../benchmarks/results/t_2_small.json), seed 4 |  | not run "
        "| `fedpers run -m +experiment=t_2` |",
    ]


def test_the_cells_of_pflegos_tables_are_on_its_page():
    """13 columns, 12 of 7 methods and one of 8; `test_a_page_shows_what_its_files_say` compares them."""
    page = (ROOT / "docs" / "methods" / "pflego-results.md").read_text(encoding="utf-8")
    assert "<!-- results: cells of pflego_table -->" in page
    rows = pages.cells("pflego_table", ROOT, "../..").splitlines()[2:]
    states = re.findall(r"\[full\]|\[reduced\]|not run", "\n".join(rows))
    assert (len(rows), len(states)) == (13, 12 * 7 + 8)


def test_a_table_escapes_its_bars():
    assert table(["a", "b"], [["1|2", "3"]]) == "| a | b |\n|---|---|\n| 1\\|2 | 3 |"


def record(**row):
    result = {
        "method": "m",
        "name": "m",
        "column": "High",
        "runs": 2,
        "seeds": [0, 1],
        "mean": 50.0,
        "std": 1.5,
        "paper": 49.0,
    }
    content = {"setting": "s", "changed": ["rounds=2"], "commands": ["fedpers run"], "commits": ["0" * 40]}
    return {**content, "versions": {"torch": "2"}, "results": [{**result, "paper_std": None, **row}]}


def test_an_experiment_stands_beside_the_paper():
    text = pages.experiment(record(), "x.json")
    assert "| method | runs | High | paper |" in text and "| m | 2 | 50.00 ± 1.50 | 49.00 |" in text
    assert "reduced: rounds=2" in text and "```bash\nfedpers run\n```" in text


def test_the_map_takes_states_from_files(tmp_path):
    (tmp_path / pages.RESULTS).mkdir(parents=True)
    (tmp_path / pages.RESULTS / "e.json").write_text(json.dumps(record()))
    ours = [record(paper=None, column=c, mean=m)["results"][0] for c, m in (("High", 6.0), ("Low", 7.0))]
    (tmp_path / pages.RESULTS / "g.json").write_text(json.dumps({**record(), "results": ours}))
    entries = [
        {"what": "Table 1", "experiment": "e", "method": "m", "paper": "x", "why": "noise"},
        {"what": "Table 2", "experiment": "f", "paper": "2.0", "why": "needs a GPU"},
        {"what": "Table 3", "paper": "3.0", "state": "one seed", "ours": "3.1", "file": "f.json", "why": ""},
        {"what": "Table 4", "experiment": "g", "method": "m", "paper": "x", "why": ""},
        {"what": "Table 5", "experiment": "g", "method": "m", "column": "Low", "paper": "x", "why": ""},
    ]
    (tmp_path / "docs").mkdir()
    (tmp_path / pages.MAP).write_text(yaml.safe_dump({"p": entries}))
    lines = pages.paper_map("p", tmp_path, "..").splitlines()[2:]
    state = "[reduced: rounds=2, 2 seeds](../benchmarks/results/e.json)"
    assert f"{state} | 50.00 ± 1.50 | 49.00 | noise | `fedpers run`" in lines[0]
    assert "| not run |  | 2.0 | needs a GPU | `fedpers run -m +experiment=f` |" in lines[1]
    assert f"| [one seed](../{pages.RESULTS}/f.json) | 3.1 | 3.0 |" in lines[2]
    assert "| `High`<br>6.00 ± 1.50 | x |" in lines[3] and "| `Low`<br>7.00 ± 1.50 | x |" in lines[4]


def test_the_five_papers_are_sorted_by_what_was_run(tmp_path):
    """What our list alone has is left out; a number without a file is no full size."""
    out = tmp_path / pages.RESULTS
    out.mkdir(parents=True)
    for name, changed in (("e", []), ("f", []), ("g", ["rounds=2"])):
        (out / f"{name}.json").write_text(
            json.dumps({**record(), "changed": changed, "paper": {"table": "1"}})
        )
    entries = [
        {"what": "A", "experiment": "e", "paper": "1", "reproduced": True},
        {"what": "B", "experiment": "f", "paper": "1"},
        {"what": "C", "experiment": "g", "paper": "1"},
        {"what": "D", "experiment": "h", "paper": "1", "why": "needs a GPU"},
        {"what": "E", "experiment": "e", "paper": "not in the paper"},
        {"what": "F", "paper": "1", "ours": "2", "state": "one seed"},
    ]
    (tmp_path / "docs").mkdir()
    (tmp_path / pages.MAP).write_text(yaml.safe_dump({"ppfl": entries}))
    (line,) = pages.five_papers(tmp_path, "..").splitlines()[2:]
    assert line == "| [PPFL](methods/ppfl.md) | A | B | C; F | D (needs a GPU) |"


def test_a_box_is_the_indented_part_of_a_docstring(tmp_path):
    path = tmp_path / "x.py"
    path.write_text('"""X.\n\nA, B.\n\n    f = g\n\n    [S1] go\n        on\n\nDeviations: none.\n"""\n')
    fenced, legend = pages.box(path).rsplit("\n\n", 1)
    assert fenced == "```text\nf = g\n\n[S1] go\n    on\n```"
    assert legend.startswith("[S1], [S2].. are the server's steps") and "\n" not in legend


# ---- numbers in the text ------------------------------------------------------------------------

LINK = re.compile(r"benchmarks/results/|results\.md#")  # to a file, or to a table that has one
NUMBER = re.compile(r"\d+\.\d+ ?%|\d ± \d|(?<![\d.])\d+\.\d+ [±(]")


def test_no_page_has_results_without_a_file():
    """Outside of the tables that files fill."""
    found = {}
    for page in (p for p in pages.pages(ROOT) if p.name != "results.md" and "adr" not in p.parts):
        found |= {(page.name, h): n for h, n in sections(PART.sub("", page.read_text(encoding="utf-8")))}
    assert not found, "link the file of these numbers in their paragraph, or delete them"


def sections(text):
    """(heading, lines that state a result) of a page, in paragraphs without a link to a file.

    A table needs none if the paragraph before it has one, or begins with "The paper's".
    """
    heading, before, counts = "", "", Counter()
    for paragraph in re.split(r"\n\s*\n", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)):
        source = f"{before}\n{paragraph}" if paragraph.startswith("|") else paragraph
        settings = paragraph.startswith(("| key", "| layer"))
        linked = LINK.search(source) or (source != paragraph and before.startswith("The paper's"))
        for line in paragraph.splitlines():
            if line.startswith("#"):
                heading = line.lstrip("# ")
            elif not (settings or linked) and (NUMBER.search(line) or cells(line) >= 2):
                counts[heading] += 1
        before = paragraph
    yield from counts.items()


def cells(line):
    """How many cells of a table's row are numbers."""
    found = line.split("|")[1:-1] if line.startswith("|") else ()
    return sum(bool(re.match(r"[*\s]*[\d.]*\.\d", c)) for c in found)


def test_results_without_a_link_are_found():
    text = """# Page
## Keys

| key | default |
| --- | --- |
| `lr` | 0.1 ± 0 |

## Prose
It reached 91.8 ± 0.9 here.

And 91.7 ± 0.8,
[there](../benchmarks/results/x.json).

[Elsewhere](results.md#y):
90.1 ± 0.2.

Version 2.0 is no result, nor is 0.1.0 (of 2026).
```
97.5 % in code
```

## Table

| | a | b |
| --- | --- | --- |
| x | 0.5 | **0.7** |

[Linked](results.md#y):

| | a | b |
| --- | --- | --- |
| x | 0.5 | 0.7 |

The paper's:

| | a | b |
| --- | --- | --- |
| x | 0.5 | 0.7 |

The paper's end at 91.8 %, ours at 91.9 %.
"""
    assert dict(sections(text)) == {"Prose": 1, "Table": 2}
