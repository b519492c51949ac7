"""Hooks of MkDocs: menus from folders, pages from the repository's root, links that leave docs/."""

import os
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}  # outside of docs/: in the site
SAME = {"README.md": "index.md", "docs/adr": "adr/index.md"}  # what stands for what is not there
TAG = re.compile(r"(```.*?^```|`[^`\n]*`)|\[([SC]\d+)\](?![\[(])", re.M | re.S)  # of a paper's box; code is left
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_config(config):
    """Fill the menus that are folders."""
    for title, folder in (("Methods", "methods"), ("Decisions", "adr")):
        paths = sorted((ROOT / "docs" / folder).glob("*.md"), key=lambda p: (p.stem != "index", p.name))
        pages = [p.relative_to(ROOT / "docs").as_posix() for p in paths]
        _fill(config.nav, title, pages)
    return config


def _fill(nav, title, pages):
    for entry in nav:
        for name, value in entry.items():
            if name == title and value == []:
                entry[name] = pages
            elif isinstance(value, list) and value and isinstance(value[0], dict):
                _fill(value, title, pages)


def on_files(files, config):
    """Add what lies outside of docs/: two pages, and the numbers that pages link to."""
    for source, target in PAGES.items():
        files.append(File.generated(config, target, content=(ROOT / source).read_text(encoding="utf-8")))
    for path in sorted((ROOT / "benchmarks" / "results").glob("*.json")):
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Have links lead to where their target is in the site; a link to code becomes its text."""
    here = page.file.src_uri
    folder = "" if here in PAGES.values() else os.path.join("docs", os.path.dirname(here))

    def moved(match):
        text, target, anchor = match[1], match[2], match[3] or ""
        inside = os.path.normpath(os.path.join(folder, target))
        name = PAGES.get(inside) or SAME.get(inside) or inside.removeprefix("docs/")
        if files.get_file_from_path(name) is None and (ROOT / inside).exists():
            return text
        return f"[{text}]({os.path.relpath(name, os.path.dirname(here) or '.')}{anchor})"

    def escaped(match):
        return match[1] or f"\\[{match[2]}\\]"  # else taken for a reference

    return TAG.sub(escaped, LINK.sub(moved, markdown))
