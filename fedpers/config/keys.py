"""The keys of a run as its YAML files have them: names, defaults, and what their comments say."""

import re
from collections.abc import Iterator
from pathlib import Path

from fedpers.core.documents import table

LINE = re.compile(r"^( *)([\w-]+):(?: +([^#]*?))? *(?:# ?(.*))?$")
SKIPPED = ("defaults", "hydra", "hyper", "paper")  # of a file's keys: not a user's to set
Row = tuple[str, str, str]  # key, default, what it means
GROUPS = ("data", "model", "method", "engine", "systems", "aggregation", "privacy")


def rows(text: str, prefix: str) -> Iterator[Row]:
    """The keys of a YAML file with their defaults and comments; a comment may go on below its line."""
    path: list[tuple[int, str]] = []
    held: Row | None = None
    for line in text.splitlines():
        match = LINE.match(line)
        if match is None:
            if held is not None and line.startswith("  ") and line.lstrip().startswith("#"):
                held = (held[0], held[1], f"{held[2]} {line.lstrip().lstrip('# ')}")
            continue
        indent, key, value, comment = len(match[1]), match[2], match[3] or "", match[4] or ""
        path = [*((i, k) for i, k in path if i < indent), (indent, key)]
        if path[0][1] in SKIPPED:
            continue
        if held is not None:
            yield held
        held = (prefix + ".".join(k for _, k in path), value, comment) if value or comment else None
    if held is not None:
        yield held


def all_keys(root: Path, up: str) -> str:
    """A table for the run's own keys and one for each file of each group, in Markdown."""
    conf = root / "conf"
    parts = ["## Of a run\n\n" + _table((conf / "config.yaml").read_text(encoding="utf-8"), "")]
    for group in GROUPS:
        parts.append(f"## {group}")
        for path in sorted((conf / group).glob("*.yaml")):
            text = path.read_text(encoding="utf-8")
            first = next((x.lstrip("# ") for x in text.splitlines() if x.startswith("#")), "")
            parts.append(f"### {group}={path.stem}\n\n{first}\n\n{_table(text, f'{group}.')}")
    return "\n\n".join(parts)


def _table(text: str, prefix: str) -> str:
    found = [row for row in rows(text, prefix) if row[0] != f"{prefix}name"]
    return table(
        ("key", "default", "meaning"), [(f"`{key}`", f"`{d}`" if d else "", m) for key, d, m in found]
    )
