"""Draws docs/images/architecture.svg from the imports of the code, so that it cannot be wrong.

    python docs/figures/architecture.py [FILE]

A box a package, on the lowest floor that its imports allow; an arrow points to a package that it
imports, unless that one is reached through another (transitive reduction).
"""

import ast
import sys
import textwrap
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOP_LEVEL = {  # mapped into the package when it is installed
    "datasets": "data sets and partitions",
    "clients": "what one client answers, a file a method",
    "strategies": "what the server does in a round, a file a method",
}
FACES = {"method": "all that a method's two files need", "simulate": "one run from Python objects"}
WIDTH, HEIGHT, GAP, RISE, PAD = 215, 88, 24, 52, 24
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #52514e; }
.name { font: 600 15px ui-monospace, monospace; fill: #0b0b0b; }
rect { fill: #fcfcfb; stroke: #c3c2b7; }
rect.mapped { fill: #e9f1fb; stroke: #2a78d6; }
path { stroke: #898781; fill: none; stroke-width: 1.3; marker-end: url(#arrow); }
"""


def captions() -> dict[str, str]:
    """{package: what it is}: the docstrings of the packages, and what has none."""
    found = {}
    for init in sorted((ROOT / "fedpers").glob("*/__init__.py")):
        text = ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or ""
        found[init.parent.name] = text.splitlines()[0].partition(";")[0].rstrip(".")
    return found | TOP_LEVEL | FACES


def files_of(name: str) -> list[Path]:
    """The modules of a package."""
    if name in FACES:
        return [ROOT / "fedpers" / f"{name}.py"]
    return sorted((ROOT / name if name in TOP_LEVEL else ROOT / "fedpers" / name).rglob("*.py"))


def imports(name: str, known: set[str]) -> set[str]:
    """The packages that a package imports: at the top, in functions and for types only."""
    found = set()
    for path in files_of(name):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedpers."):
                found.add(str(node.module).split(".")[1])
    return found & known - {name}


def floors(below: dict[str, set[str]]) -> dict[str, int]:
    """{package: its floor}; what imports nothing is on floor 0."""
    floor: dict[str, int] = {}
    while len(floor) < len(below):
        for name, targets in below.items():
            if name not in floor and targets <= floor.keys():
                floor[name] = max((floor[t] + 1 for t in targets), default=0)
    return floor


def direct(below: dict[str, set[str]]) -> list[tuple[str, str]]:
    """The imports that no longer way replaces."""

    def reach(name: str) -> set[str]:
        return below[name].union(*(reach(t) for t in below[name]))

    return [(a, b) for a in below for b in sorted(below[a]) if not any(b in reach(c) for c in below[a] - {b})]


def places(floor: dict[str, int]) -> tuple[dict[str, tuple[float, float]], float, float]:
    """({package: left upper corner}, width, height)."""
    rows = [[n for n in floor if floor[n] == f] for f in range(max(floor.values()) + 1)]
    width = max(len(row) * (WIDTH + GAP) - GAP for row in rows) + 2 * PAD
    height = len(rows) * (HEIGHT + RISE) - RISE + 2 * PAD
    at = {}
    for f, row in enumerate(rows):
        left = (width - len(row) * (WIDTH + GAP) + GAP) / 2
        for i, name in enumerate(row):
            at[name] = left + i * (WIDTH + GAP), height - PAD - HEIGHT - f * (HEIGHT + RISE)
    return at, width, height


def box(name: str, caption: str, x: float, y: float) -> str:
    """One package."""
    lines = textwrap.wrap(caption, 31)[:4]
    kind = ' class="mapped"' if name in TOP_LEVEL else ""
    label = f"{name}/" if name not in FACES else f"{name}.py"
    text = "".join(f'<text x="{x + 10:g}" y="{y + 40 + 15 * i:g}">{escape(t)}</text>\n'
                   for i, t in enumerate(lines))
    return (f'<rect{kind} x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>\n'
            f'<text class="name" x="{x + 10:g}" y="{y + 22:g}">{label}</text>\n{text}')


def arrows(edges: list[tuple[str, str]], at: dict[str, tuple[float, float]]) -> str:
    """From the bottom of a box to the top of another; those of one box are spread."""
    out = {n: [b for a, b in edges if a == n] for n in at}
    into = {n: [a for a, b in edges if b == n] for n in at}
    lines = []
    for a, b in edges:
        ends = []
        for name, others, far in ((a, out[a], b), (b, into[b], a)):
            order = sorted(others, key=lambda n: at[n][0])
            ends.append(at[name][0] + WIDTH * (order.index(far) + 1) / (len(order) + 1))
        y1, y2 = at[a][1] + HEIGHT, at[b][1] - 3
        lines.append(f'<path d="M{ends[0]:g} {y1:g} C{ends[0]:g} {y1 + 40:g} '
                     f'{ends[1]:g} {y2 - 40:g} {ends[1]:g} {y2:g}"/>')
    return "\n".join(lines)


def draw() -> str:
    """The picture, as SVG."""
    about = captions()
    below = {name: imports(name, set(about)) for name in about}
    at, width, height = places(floors(below))
    boxes = "".join(box(name, about[name], *at[name]) for name in at)
    marker = ('<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
              'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" style="fill:#898781;stroke:none"/>'
              "</marker></defs>")
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}">\n'
            f"<style>{STYLE}</style>\n{marker}\n"
            f'<rect width="{width:g}" height="{height:g}" style="fill:#ffffff;stroke:none"/>\n'
            f"{arrows(direct(below), at)}\n{boxes}</svg>\n")


if __name__ == "__main__":
    target = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "docs" / "images" / "architecture.svg"
    target.write_text(draw(), encoding="utf-8")
