"""`fedpers report`: stored runs to tables and pictures, on the screen and in two files."""

import re
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from fedpers.results import files
from fedpers.results.plots import curves
from fedpers.results.plots import optimality_gap as gap_curves
from fedpers.results.report import optimality_gap, tables
from fedpers.results.report.page import ReportTable, Section, html_page, markdown, print_tables
from fedpers.results.report.paper import paper_columns, paper_scale, paper_value
from fedpers.results.report.runs import Setting, StoredRun, find_runs, group_by_setting


def write_report(paths: Sequence[Path], out: Path | None = None) -> Path:
    """Print the tables and write report.md and report.html; returns the latter's path.

    Args:
        paths: run directories, or folders with runs below.
        out: the folder to write into; default: the only one of `paths`, else the current folder.

    Raises:
        ConfigError: there is no run in a path.
    """
    runs = find_runs(paths)
    folder = out or (paths[0] if len(paths) == 1 else Path.cwd())
    sections = [*(_section(s, folder / "report") for s in group_by_setting(runs)), *_left_out(runs)]
    print_tables(sections)
    files.replace_text(folder / "report.md", markdown(sections, folder))
    path = folder / "report.html"
    files.replace_text(path, html_page(sections))
    Console().print(f"{path}", highlight=False, soft_wrap=True)
    return path


def _section(setting: Setting, folder: Path) -> Section:
    made = [tables.results(setting), *tables.beside_paper(setting), *optimality_gap.tables(setting)]
    return Section(setting.name, [*made, tables.costs(setting)], _draw(setting, folder))


def _left_out(runs: Sequence[StoredRun]) -> list[Section]:
    rows = [(str(r.path), r.problem) for r in runs if r.problem]
    table = ReportTable("runs that are not counted", ("run", "why"), rows, words=True)
    return [Section("Left out", [table])] if rows else []


def _draw(setting: Setting, folder: Path) -> list[Path]:
    """Curves of all methods, and their final values beside the paper's."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"\W+", "-", setting.name).strip("-")
    rows = {g.name: [run.rows for run in g.runs] for g in setting.groups}
    metric = next(iter(paper_columns(setting.paper).values()))
    if not any(v == v for g in setting.groups for v in g.values(metric)):
        metric = "loss"  # regression
    last, scale = int(setting.paper.get("last", 1)), paper_scale(setting.paper)
    values = {g.name: [v for v in g.values(metric, last) if v == v] for g in setting.groups}
    theirs = {g.name: paper_value(g.paper, g.method) for g in setting.groups}
    return [
        *gap_curves.compare(rows, folder / f"{stem}-objective.png"),
        curves.compare(rows, folder / f"{stem}-curves.png"),
        curves.final_values(
            {name: many for name, many in values.items() if many},
            folder / f"{stem}-final.png",
            f"Final test {metric.replace('_', ' ')}",
            {name: value[0] / scale for name, value in theirs.items() if value},
            share=metric.startswith("accuracy"),
        ),
    ]
