"""Draws docs/images/one_round.svg: what goes where in one round of PFLEGO.

    python docs/figures/one_round.py [FILE]

The steps are those of the box in strategies/pflego.py.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WIDTH, HEIGHT, BOX = 860, 400, 240
STYLE = """
text { font: 12.5px system-ui, sans-serif; fill: #52514e; }
.name { font-weight: 600; font-size: 15px; fill: #0b0b0b; }
.own { fill: #8a4b08; }
rect { fill: #fcfcfb; stroke: #c3c2b7; }
rect.shared { fill: #e9f1fb; stroke: #2a78d6; }
rect.own { fill: #fdf1e0; stroke: #c9791a; }
path { stroke: #898781; fill: none; stroke-width: 1.5; marker-end: url(#arrow); }
"""
ARROW = (
    '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><path d="M0 0L8 4L0 8z" style="fill:#898781;stroke:none"/></marker></defs>'
)
CLIENTS = ("digits 0, 3, 4, 8", "digits 1, 2, 5, 9", "digits 0, 2, 6, 7")


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """A centred line of text."""
    return f'<text x="{x}" y="{y}" text-anchor="middle" class="{kind}">{words}</text>'


def box(x: float, y: float, width: float, height: float, kind: str = "") -> str:
    """A rectangle with round corners."""
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" class="{kind}"/>'


def client(i: int, digits: str) -> list[str]:
    """Client i with its data, its head and the two arrows between it and the server."""
    x = 40 + i * (BOX + 30)
    middle = x + BOX / 2
    return [
        box(x, 215, BOX, 165),
        text(middle, 238, f"client {i + 1}", "name"),
        text(middle, 257, f"its images: {digits}"),
        box(x + 15, 270, BOX - 30, 50, "own"),
        text(middle, 290, "its own head, which stays here", "own"),
        text(middle, 308, "2. trained on the body's features"),
        text(middle, 345, "3. gradient of the body,"),
        text(middle, 363, "on all its images"),
        f'<path d="M{middle - 25} 110 L{middle - 25} 210"/>',
        text(middle - 62, 165, "1. body"),
        f'<path d="M{middle + 25} 215 L{middle + 25} 115"/>',
        text(middle + 73, 165, "4. gradient"),
    ]


def draw() -> str:
    """The picture."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">',
        f"<style>{STYLE}</style>{ARROW}",
        f'<rect width="{WIDTH}" height="{HEIGHT}" style="fill:#ffffff;stroke:none"/>',
        box(40, 25, WIDTH - 80, 85, "shared"),
        text(WIDTH / 2, 52, "server", "name"),
        text(WIDTH / 2, 72, "one body, shared by all: it turns an image into features"),
        text(WIDTH / 2, 92, "5. one step along the mean of the gradients, then the next round"),
    ]
    for i, digits in enumerate(CLIENTS):
        parts += client(i, digits)
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images" / "one_round.svg"
    target.write_text(draw(), encoding="utf-8")
