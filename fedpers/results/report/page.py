"""A report on the screen, as Markdown and as one HTML file that holds its figures."""

import base64
import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from fedpers.results import files
from fedpers.results.plots import curves, optimality_gap
from fedpers.results.report.paper import paper_columns, paper_value

if TYPE_CHECKING:
    from fedpers.results.report.runs import Setting, Table

CSS = """
body { font: 15px/1.5 system-ui, sans-serif; color: #22252b; max-width: 1080px;
       margin: 2.5rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.4rem; }
table { border-collapse: collapse; margin: .8rem 0 1.4rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: #6b7280; padding-bottom: .3rem; }
th { text-align: left; border-bottom: 2px solid #c9ced6; font-weight: 600; }
th, td { padding: .3rem .9rem .3rem 0; vertical-align: top; }
td { border-bottom: 1px solid #e6e9ee; }
td:not(:first-child) { white-space: nowrap; }
img { max-width: 100%; display: block; margin: .6rem 0; }
footer { color: #6b7280; font-size: .85rem; margin-top: 3rem; }
"""
WIDE = 160
FOOT = "mean ± standard deviation over runs (ddof = 1); n is the number of runs."


def write(
    folder: Path, settings: "Sequence[Setting]", tables: "Mapping[str, Sequence[Table]]", left_out: "Table"
) -> Path:
    """Print everything, draw the figures, write report.md and report.html."""
    pictures = {s.name: draw(s, folder / "report") for s in settings}
    _screen(tables, left_out)
    files.replace_text(folder / "report.md", _markdown(tables, pictures, left_out, folder))
    path = folder / "report.html"
    files.replace_text(path, _page(tables, pictures, left_out))
    Console().print(f"{path}", highlight=False, soft_wrap=True)
    return path


def draw(setting: "Setting", folder: Path) -> list[Path]:
    """Learning curves of all methods, and their final values."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"\W+", "-", setting.name).strip("-")
    rows = {g.name: [run.rows for run in g.runs] for g in setting.groups}
    metric = next(iter(paper_columns(setting.paper).values()))
    last = int(setting.paper.get("last", 1))
    if not any(v == v for g in setting.groups for v in g.values(metric)):
        metric = "loss"  # regression
    values = {g.name: [v for v in g.values(metric, last) if v == v] for g in setting.groups}
    factor = 100.0 if setting.paper.get("percent") else 1.0
    known = {g.name: paper_value(g.runs[0].config.get("paper") or {}, g.method) for g in setting.groups}
    title = f"Final test {metric.replace('_', ' ')}"
    return [
        *optimality_gap.compare(rows, folder / f"{stem}-objective.png"),
        curves.compare(rows, folder / f"{stem}-curves.png"),
        curves.final_values(
            {k: v for k, v in values.items() if v},
            folder / f"{stem}-final.png",
            title,
            {k: v[0] / factor for k, v in known.items() if v},
            share=metric.startswith("accuracy"),
        ),
    ]


def _screen(tables: "Mapping[str, Sequence[Table]]", left_out: "Table") -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDE)  # a file has no edge
    for table in [*(t for many in tables.values() for t in many), left_out]:
        if not table.rows:
            continue
        shown = RichTable(
            title=table.title,
            title_justify="left",
            title_style="bold",
            box=None,
            header_style="dim",
            pad_edge=False,
        )
        for i, column in enumerate(table.columns):
            words = i == 0 or table is left_out
            shown.add_column(column, justify="left" if words else "right", no_wrap=not words, overflow="fold")
        for row in table.rows:
            shown.add_row(*map(escape, row))
        console.print(shown, "", highlight=False)


def _markdown(
    tables: "Mapping[str, Sequence[Table]]",
    pictures: Mapping[str, Sequence[Path]],
    left_out: "Table",
    folder: Path,
) -> str:
    parts = ["# Report", FOOT]
    for name, many in tables.items():
        parts += [f"## {name}", *(_markdown_table(t) for t in many)]
        parts += [f"![{p.stem}]({p.relative_to(folder).as_posix()})" for p in pictures[name]]
    if left_out.rows:
        parts += ["## Left out", _markdown_table(left_out)]
    return "\n\n".join(parts) + "\n"


def _markdown_table(table: "Table") -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(c.replace("|", "\\|").replace("\n", " ") for c in cells) + " |"

    rows = [line(table.columns), line(["---"] * len(table.columns)), *map(line, table.rows)]
    return f"{table.title}\n\n" + "\n".join(rows)


def _page(
    tables: "Mapping[str, Sequence[Table]]", pictures: Mapping[str, Sequence[Path]], left_out: "Table"
) -> str:
    parts = []
    for name, many in tables.items():
        parts += [
            f"<h2>{html.escape(name)}</h2>",
            *map(_html_table, many),
            *map(_html_picture, pictures[name]),
        ]
    if left_out.rows:
        parts += ["<h2>Left out</h2>", _html_table(left_out)]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>fedpers report</title>'
        f"<style>{CSS}</style><body><h1>fedpers report</h1>\n"
        + "\n".join(parts)
        + f"\n<footer>{FOOT}</footer></body></html>\n"
    )


def _html_table(table: "Table") -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

    body = "\n".join(line(row, "td") for row in table.rows)
    return (
        f"<table><caption>{html.escape(table.title)}</caption>"
        f"<thead>{line(table.columns, 'th')}</thead>\n<tbody>{body}</tbody></table>"
    )


def _html_picture(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{html.escape(path.stem)}" src="data:image/png;base64,{data}">'
