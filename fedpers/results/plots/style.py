"""How our pictures look, and how a figure is made and saved. pyplot and its state are not used."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedpers.config.registry import METHODS

INK = "#22252b"
PALETTE = (
    "#2f6db5",
    "#e0752d",
    "#3f9b6c",
    "#b0417c",
    "#7b61b8",
    "#c59d1a",
    "#4aa7c4",
    "#8c5a3c",
    "#d1495b",
    "#6b7280",
    "#e58fb1",
    "#22355c",
)
STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.edgecolor": "#8a919c",
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#e6e9ee",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "lines.linewidth": 1.9,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.fontsize": 9,
    "axes.linewidth": 0.8,
}


def colour(name: str, others: Sequence[str] = ()) -> str:
    """A method's colour, the same in every picture unless one of `others` there has it already."""
    known = [*METHODS, *sorted({name, *others} - METHODS.keys())]
    taken: dict[str, int] = {}
    for each in sorted({name, *others}, key=known.index):
        place = known.index(each) % len(PALETTE)
        while place in taken.values() and len(taken) < len(PALETTE):
            place = (place + 1) % len(PALETTE)
        taken[each] = place
    return PALETTE[taken[name]]


def style(more: Any = None) -> Any:
    """A context in which our style holds, with `more` settings of matplotlib."""
    settings: Any = {**STYLE, **(more or {})}
    return mpl.rc_context(settings)


def figure(
    panels: int, width: float | None = None, height: float = 3.1, across: int | None = None
) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side, `across` of them in a row; sizes in inches, of one row."""
    across = min(panels, across or panels)
    down = -(-panels // across)
    made = Figure(figsize=(width or 4.3 * across, height * down), layout="constrained")
    FigureCanvasAgg(made)
    axes = list(made.subplots(down, across, squeeze=False).flat)
    for unused in axes[panels:]:
        unused.remove()
    return made, axes[:panels]


def save(figure: Figure, path: Path) -> Path:
    """Write a PNG; returns its path."""
    figure.savefig(path, dpi=150)
    return path
