"""Tables of the documentation, made from the files in benchmarks/results: `make tables`.

A part of a page is marked "<!-- results: FILE.json -->" (one experiment), "<!-- results: map of PAPER -->"
(all tables and figures of a paper, from docs/results.yaml), "<!-- results: five papers -->" (what of each is
reproduced, reduced or not run), "<!-- results: cells of PREFIX -->" (every cell of the tables in
conf/experiment/PREFIX*.yaml: full, reduced or not run), "<!-- results: box of METHOD -->" (the algorithm,
from strategies/METHOD.py), "<!-- results: benchmark of METHOD, ... -->" (their rows of the benchmark), "<!--
results: differences of FILE.json -->" (to local training and FedAvg, over seeds and over clients) or "<!--
results: keys -->" (of conf/).
"""

import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

import fedpers
from fedpers.config.keys import all_keys
from fedpers.core.documents import Render, fill, table
from fedpers.core.metrics import in_words
from fedpers.results.differences import differences
from fedpers.results.method_tables import RESULTS, benchmark, box
from fedpers.results.report.record import size

ROOT = Path(fedpers.__file__).resolve().parents[1]  # of a source tree
MAP = "docs/results.yaml"
PAPERS = {
    "pflego": "[PFLEGO](methods/pflego.md)",
    "ppfl": "[PPFL](methods/ppfl.md)",
    "fedsoft": "[FedSoft](methods/fedsoft.md)",
    "federico": "[FedeRiCo](methods/federico.md)",
    "unified": "[Unified framework](methods/unified.md)",
}
Record = Mapping[str, Any]


def main() -> int:
    """Fill all pages; prints those that changed."""
    for page in pages(ROOT):
        if fill(page, renderer(page, ROOT)):
            print(page.relative_to(ROOT))
    return 0


def renderer(page: Path, root: Path) -> Render:
    """What fills the parts of one page, whose links start from its folder."""
    return partial(render, root=root, up=os.path.relpath(root, page.parent))


def pages(root: Path) -> list[Path]:
    """README and all pages of the documentation."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def render(name: str, root: Path, up: str) -> str | None:
    """The Markdown that a mark asks for, None for another program's; `up` leads from the page to `root`."""
    if name.startswith("box of "):
        return box(root / "strategies" / f"{name.removeprefix('box of ')}.py")
    kind, of, what = name.partition(" of ")
    parts = {"map": paper_map, "cells": cells, "benchmark": benchmark, "differences": differences}
    if of and kind in parts:
        return parts[kind](what, root, up)
    if name.endswith(".json"):
        record, link = _record(name.removesuffix(".json"), root), f"{up}/{RESULTS}/{name}"
        return experiment(record, link) if "results" in record else measurement(record, link)
    whole = {"five papers": five_papers, "keys": all_keys}
    return whole[name](root, up) if name in whole else None


# ---- one experiment -----------------------------------------------------------------------------


def experiment(record: Record, link: str) -> str:
    """A row a method, ours beside the paper's, then how it was made."""
    columns = list(dict.fromkeys(r["column"] for r in record["results"]))
    cells: dict[str, dict[str, Record]] = {}
    for row in record["results"]:
        cells.setdefault(row["name"], {})[row["column"]] = row
    printed = any(r["paper"] is not None for r in record["results"])
    heads = [h for c in map(in_words, columns) for h in ([c, "paper"] if printed else [c])]
    rows = [
        [method, str(max(r["runs"] for r in found.values()))]
        + [text for c in columns for text in _pair(found.get(c), printed)]
        for method, found in cells.items()
    ]
    made = "\n".join(record["commands"])
    seeds = {seed for r in record["results"] for seed in r["seeds"]}
    commits = ", ".join(c[:12] for c in record["commits"])
    versions = ", ".join(f"{k} {v}" for k, v in record["versions"].items())
    what = "One run a row" if len(seeds) < 2 else "Mean ± standard deviation over runs"
    last = record.get("paper", {}).get("last", 1)
    what += f", each of its last {last} evaluations" if last > 1 else ""
    note = f"{what}; {size(record)}; commit {commits}; {versions}"
    shown = table(["method", "runs", *heads], rows)
    where = "" if printed else f"[columns]({link.partition(RESULTS)[0]}docs/metrics.md), "  # else the paper's
    return f"{shown}\n\n{note} ({where}[file]({link})).\n\n```bash\n{made}\n```"


def measurement(record: Record, link: str) -> str:
    """What a script of benchmarks/ measured: its columns as they are, then where and how."""
    heads = list(record["rows"][0])
    rows = [[_cell(row[head]) for head in heads] for row in record["rows"]]
    where = "{date} on {cpu}, {cores} cores, load {load:.1f}, Python {python}".format(**record["machine"])
    versions = ", ".join(f"{k} {v}" for k, v in record["machine"]["versions"].items())
    shown = table([head.replace("_", " ") for head in heads], rows)
    return f"{shown}\n\nMeasured {where}; {versions} ([file]({link})).\n\n```bash\n{record['command']}\n```"


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _pair(row: Record | None, printed: bool) -> list[str]:
    ours = "" if row is None else number(row["mean"], row["std"])
    theirs = "" if row is None or row["paper"] is None else number(row["paper"], row["paper_std"])
    return [ours, theirs] if printed else [ours]


def number(mean: float, std: float | None) -> str:
    """Two decimals, or four significant digits of what is small and hardly varies."""
    std = 0.0 if std is not None and std < 1e-12 * abs(mean) else std  # all alike but for the last bits
    form, of_std = (".2f", ".2f") if abs(mean) >= 10 or (std or 0.0) >= 0.05 else (".4g", ".2g")
    return f"{mean:{form}}" if std is None else f"{mean:{form}} ± {std:{of_std}}"


# ---- every cell of a table ----------------------------------------------------------------------


def cells(prefix: str, root: Path, up: str) -> str:
    """A row a column of the paper's tables, a cell a method: how it was run, its seeds; and the command.

    Tables are the experiments whose names begin with `prefix`, their runs are in files of such names.
    """
    tables = {p.stem: _paper_of(p) for p in sorted((root / "conf" / "experiment").glob(f"{prefix}*.yaml"))}
    methods = list(dict.fromkeys(m for values, _ in tables.values() for m in values))
    rows = []
    for name, (values, columns) in tables.items():
        files = sorted((root / RESULTS).glob(f"{name}*.json"))
        records = {p.name: json.loads(p.read_text(encoding="utf-8")) for p in files}
        for column, override in columns.items():
            found = [_state(records, m, column, up) if m in values else "" for m in methods]
            rows.append([column, *found, f"`fedpers run -m +experiment={name}{override}`"])
    return table(["column", *methods, "all methods at full size"], rows)


def _paper_of(path: Path) -> tuple[Record, Mapping[str, str]]:
    """(the paper's values by method, {column: override that chooses it}); columns are classes a client."""
    paper = yaml.safe_load(path.read_text(encoding="utf-8"))["paper"]
    several = paper.get("columns", {})
    if not several:
        return paper["values"], {paper["column"]: ""}
    return paper["values"], {c: f" data.classes_per_client={k[1:]}" for k, c in several.items()}


def _state(records: Mapping[str, Record], method: str, column: str, up: str) -> str:
    """The runs of a cell: those at full size if there are some."""
    known = [
        (size(record) != "full size", row["seeds"], name)
        for name, record in records.items()
        for row in record["results"]
        if (row["method"], row["name"], row["column"]) == (method, method, column)
    ]
    if not known:
        return "not run"
    reduced, seeds, name = min(known)
    text = "reduced" if reduced else "full"
    listed = ", ".join(map(str, seeds))
    return f"[{text}]({up}/{RESULTS}/{name}), seed{'s' * (len(seeds) > 1)} {listed}"


# ---- the map ------------------------------------------------------------------------------------


def paper_map(paper: str, root: Path, up: str) -> str:
    """All tables and figures of a paper: state, our numbers, the paper's, why they differ, the command."""
    entries = yaml.safe_load((root / MAP).read_text(encoding="utf-8"))[paper]
    heads = ("what", "state", "ours", "paper", "why they differ, or why it was not run", "command")
    return table(heads, [_map_row(entry, root, up) for entry in entries])


def five_papers(root: Path, up: str) -> str:
    """A row a paper: what came out as printed, what did not at full size, what ran smaller or not at all."""
    other = "full size, other numbers or data"
    heads = ("paper", "reproduced", other, "reduced", "not run, and what it would take")
    papers = yaml.safe_load((root / MAP).read_text(encoding="utf-8"))
    return table(heads, [[PAPERS[paper], *_states(many, root)] for paper, many in papers.items()])


def _states(entries: Sequence[Record], root: Path) -> list[str]:
    """The entries of a paper by how they were run, those that were not with the reason."""
    found: dict[str, list[str]] = {"reproduced": [], "full": [], "reduced": [], "not run": []}
    for entry in entries:
        name = entry.get("experiment")
        if entry["paper"].startswith("not "):  # ours alone
            continue
        if name and (root / RESULTS / f"{name}.json").is_file():
            state = "full" if size(_record(name, root)) == "full size" else "reduced"
        else:
            state = "reduced" if entry.get("ours") else "not run"
        state = "reproduced" if entry.get("reproduced") else state
        why = f" ({entry['why']})" if state == "not run" else ""
        found[state].append(entry["what"] + why)
    return ["; ".join(many) or "-" for many in found.values()]


def _map_row(entry: Record, root: Path, up: str) -> list[str]:
    name = entry.get("experiment")
    record = _record(name, root) if name and (root / RESULTS / f"{name}.json").is_file() else None
    state, ours = entry.get("state", "not run"), entry.get("ours", "")
    paper, command = entry.get("paper", ""), f"`fedpers run -m +experiment={name}`" if name else ""
    if record:
        ours, paper = _own_method(record, entry, paper)
        seeds = len({seed for r in record["results"] for seed in r["seeds"]})
        state = f"[{size(record)}, {seeds} seed{'s' * (seeds > 1)}]({up}/{RESULTS}/{name}.json)"
        command = "<br>".join(f"`{c}`" for c in record["commands"])
    elif ours:
        state = f"[{state}]({up}/{RESULTS}/{entry['file']})"
    return [entry["what"], state, ours, paper, entry.get("why", ""), command]


def _own_method(record: Record, entry: Record, paper: str) -> tuple[str, str]:
    """(ours, the paper's) of the entry's method: where the paper has values, else one of our columns."""
    rows = [r for r in record["results"] if r["method"] == entry["method"]]
    theirs = [number(r["paper"], r["paper_std"]) for r in rows if r["paper"] is not None]
    label = "column" if theirs else "name"
    if not theirs:
        rows = [r for r in rows if r["column"] == entry.get("column", rows[0]["column"])]
    ours = [(f"{r[label]}: " if len(rows) > 1 else "") + number(r["mean"], r["std"]) for r in rows]
    what = [] if theirs or rows[0]["column"] == "accuracy" else [f"`{rows[0]['column']}`"]
    return "<br>".join(what + ours), "<br>".join(theirs) or paper


def _record(name: str, root: Path) -> Record:
    return dict(json.loads((root / RESULTS / f"{name}.json").read_text(encoding="utf-8")))


if __name__ == "__main__":
    raise SystemExit(main())
