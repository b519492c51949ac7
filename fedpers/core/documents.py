"""Generated parts of Markdown pages: what stands between two marks is made from a file of results."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

PART = re.compile(r"(<!-- results: (.+?) -->\n).*?(<!-- end of results -->)", re.DOTALL)
Render = Callable[[str], str | None]  # what a mark names -> Markdown, or None: leave the part as it is


def filled(text: str, render: Render) -> str:
    """`text` with each part, from "<!-- results: NAME -->" to its end, replaced by render(NAME)."""

    def part(found: re.Match[str]) -> str:
        content = render(found[2])
        return found[0] if content is None else f"{found[1]}\n{content.strip()}\n\n{found[3]}"

    return PART.sub(part, text)


def fill(page: Path, render: Render) -> bool:
    """Fill a page in place; returns whether that changed it."""
    before = page.read_text(encoding="utf-8")
    after = filled(before, render)
    if after != before:
        page.write_text(after, encoding="utf-8")
    return after != before


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows as a Markdown table."""
    head, *body = ["| " + " | ".join(c.replace("|", "\\|") for c in line) + " |" for line in (columns, *rows)]
    return "\n".join([head, "|" + "---|" * len(columns), *body])
