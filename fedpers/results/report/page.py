"""Sections of tables and pictures on the screen, as Markdown and as one HTML file with its pictures."""

import base64
import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table as ScreenTable

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
WIDE = 160  # characters a line where the screen is a file, which has no edge
FOOT = "mean ± standard deviation over runs (ddof = 1); n is the number of runs."


@dataclass(frozen=True)
class ReportTable:
    """Text in rows and columns; numbers from the second column on, unless `words`."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: bool = False


@dataclass(frozen=True)
class Section:
    """A heading, its tables and its pictures."""

    name: str
    tables: Sequence[ReportTable]
    pictures: Sequence[Path] = ()


def print_tables(sections: Sequence[Section]) -> None:
    """Print all tables on the screen."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDE)
    for table in (t for s in sections for t in s.tables):
        shown = ScreenTable(title=table.title, title_justify="left", title_style="bold", box=None)
        shown.header_style, shown.pad_edge = "dim", False
        for i, column in enumerate(table.columns):
            words = i == 0 or table.words
            shown.add_column(column, justify="left" if words else "right", no_wrap=not words, overflow="fold")
        for row in table.rows:
            shown.add_row(*map(escape, row))
        console.print(shown, "", highlight=False)


def markdown(sections: Sequence[Section], folder: Path) -> str:
    """The sections as Markdown for a file in `folder`."""
    parts = ["# Report", FOOT]
    for section in sections:
        parts += [f"## {section.name}", *map(_markdown_table, section.tables)]
        parts += [f"![{p.stem}]({p.relative_to(folder).as_posix()})" for p in section.pictures]
    return "\n\n".join(parts) + "\n"


def _markdown_table(table: ReportTable) -> str:
    lines = [table.columns, ["---"] * len(table.columns), *table.rows]
    cells = [[c.replace("|", "\\|").replace("\n", " ") for c in line] for line in lines]
    return "\n".join([table.title, "", *(f"| {' | '.join(line)} |" for line in cells)])


def html_page(sections: Sequence[Section]) -> str:
    """The sections as one HTML file that needs no other."""
    parts = []
    for section in sections:
        parts.append(f"<h2>{html.escape(section.name)}</h2>")
        parts += [*map(_html_table, section.tables), *map(_html_picture, section.pictures)]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>fedpers report</title>'
        f"<style>{CSS}</style><body><h1>fedpers report</h1>\n"
        + "\n".join(parts)
        + f"\n<footer>{FOOT}</footer></body></html>\n"
    )


def _html_table(table: ReportTable) -> str:
    def line(tag: str) -> Callable[[Sequence[str]], str]:
        return lambda row: f"<tr>{''.join(f'<{tag}>{html.escape(c)}</{tag}>' for c in row)}</tr>"

    head, body = line("th")(table.columns), "\n".join(map(line("td"), table.rows))
    caption = f"<caption>{html.escape(table.title)}</caption>"
    return f"<table>{caption}<thead>{head}</thead>\n<tbody>{body}</tbody></table>"


def _html_picture(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{html.escape(path.stem)}" src="data:image/png;base64,{data}">'
