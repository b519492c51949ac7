"""How our pictures look, and how a figure is made and saved. pyplot and its state are not used."""

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fedpers.config.registry import METHODS

INK = "#22252b"
PALETTE = ("#2f6db5", "#e0752d", "#3f9b6c", "#b0417c", "#7b61b8", "#c59d1a",
           "#4aa7c4", "#8c5a3c", "#d1495b", "#6b7280", "#e58fb1", "#22355c")  # fmt: skip
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


def style(more: Mapping[str, Any] | None = None) -> AbstractContextManager[None]:
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


# ---- what several pictures have -----------------------------------------------------------------


def curve(ax: Axes, rounds: Sequence[float] | np.ndarray, values: Any, **line: Any) -> None:
    """A line over the rounds; with dots where there are so few that a line may not be seen."""
    ax.plot(rounds, values, marker="o" if len(rounds) < 3 else None, **line)


def round_axis(ax: Axes) -> None:
    """Whole round numbers along the x axis."""
    ax.set_xlabel("round")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))


def percent(axis: Axis) -> None:
    """Label an axis of shares in whole percent."""
    axis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def number_ticks(axis: Axis, numbers: Sequence[int] | np.ndarray) -> None:
    """Label the places 0, 1, ... with `numbers`, of more than 25 only some."""
    step = math.ceil(len(numbers) / 25)
    axis.set_ticks(range(0, len(numbers), step), [str(k) for k in numbers[::step]])


def legend_below(figure: Figure, ax: Axes) -> None:
    """The legend of one panel, under all of them; nothing where no curve has a label."""
    handles, labels = ax.get_legend_handles_labels()
    if labels:
        figure.legend(handles, labels, loc="outside lower center", ncols=min(6, len(labels)))
