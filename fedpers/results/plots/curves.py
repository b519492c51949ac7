"""The pictures of a run and of a comparison of runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from fedpers.core.data import Federation
from fedpers.results import files
from fedpers.results.files import CsvRow, series
from fedpers.results.plots import (
    centers,
    collaboration,
    heatmaps,
    heterogeneity,
    memberships,
    optimality_gap,
    style,
    visits,
)

PANELS = (("accuracy", "Accuracy"), ("worst_decile", "Worst tenth of the clients"), ("loss", "Loss"))


def draw_run(out: Path, federation: Federation, arrays: Mapping[str, np.ndarray]) -> list[Path]:
    """All pictures of one run, in `out`/plots; `arrays` are those of its last evaluation."""
    folder = out / "plots"
    folder.mkdir(exist_ok=True)
    rows, _ = files.read_csv(out / "metrics.csv")
    drawn = [heatmaps.partition(federation, folder / "partition.png")]
    if any(r["split"] == "test" for r in rows):
        drawn.append(learning_curves(rows, folder / "learning_curves.png"))
    drawn += optimality_gap.draw_run(rows, folder)
    order = heatmaps.client_order(federation)
    for name, value in arrays.items():
        special = name in (*centers.SPECIAL, *collaboration.SPECIAL, *visits.SPECIAL)
        if 1 <= np.ndim(value) <= 2 and np.size(value) and not special:
            drawn.append(heatmaps.heat_map(value, folder / f"{name}.png", name, order))
    stored = files.read_arrays(out / "arrays.npz")
    drawn += heterogeneity.draw(out, folder, federation)
    drawn += visits.draw(out, folder, stored)
    drawn += collaboration.draw(folder, stored, federation)
    drawn += memberships.draw(folder, stored, federation.truth)
    return drawn + centers.draw(folder, stored, federation.task == "regression")


# ---- curves -------------------------------------------------------------------------------------


def learning_curves(rows: Sequence[CsvRow], path: Path) -> Path:
    """Accuracy and loss over the rounds of one run, on test and validation splits."""
    panels = [p for p in (("accuracy", "Accuracy"), ("loss", "Loss")) if any(p[0] in r for r in rows)]
    blue, orange, _, red, *_ = style.PALETTE
    with style.style():
        drawn, axes = style.figure(len(panels))
        for ax, (name, title) in zip(axes, panels, strict=True):
            lines: list[tuple[str, str, str, dict[str, Any]]] = [
                ("test", name, "test", {"color": blue}),
                ("valid", name, "validation", {"color": orange, "linewidth": 1.3}),
                ("test", f"{name}_before", "test, before adaptation",
                 {"color": blue, "linewidth": 1.3, "linestyle": (0, (4, 2))}),
            ]  # fmt: skip
            if name == "accuracy":
                worst = {"color": red, "linewidth": 1.3}
                lines.append(("test", "worst_decile", "test, worst tenth of clients", worst))
            for split, column, label, look in lines:
                t, y = series(rows, split, column)
                if t:
                    style.curve(ax, t, y, label=label, **look)
            _finish(ax, title, share=name == "accuracy")
            ax.legend(loc="best")
        return style.save(drawn, path)


def compare(runs: Mapping[str, Sequence[Sequence[CsvRow]]], path: Path, split: str = "test") -> Path:
    """Curves of {method: rows of each run}: the mean over the runs, and one standard deviation around it."""
    everything = [row for many in runs.values() for rows in many for row in rows]
    panels = [p for p in PANELS if any(p[0] in r and r["split"] == split for r in everything)]
    with style.style():
        drawn, axes = style.figure(len(panels), height=3.3)
        for ax, (name, title) in zip(axes, panels, strict=True):
            for method, many in runs.items():
                curves = [dict(zip(*series(rows, split, name), strict=True)) for rows in many]
                _band(ax, curves, method, style.colour(method, list(runs)))
            _finish(ax, title, share=panels[0][0] == "accuracy" and name != "loss")
        style.legend_below(drawn, axes[0])
        return style.save(drawn, path)


def _band(ax: Axes, curves: Sequence[Mapping[int, float]], label: str, ink: str) -> None:
    """Mean and standard deviation of curves {round: value}, in the rounds that all have."""
    rounds = sorted(set.intersection(*map(set, curves)))
    if not rounds:
        return
    values = np.array([[c[t] for t in rounds] for c in curves])
    mean = values.mean(0)
    style.curve(ax, rounds, mean, color=ink, label=label)
    if len(values) > 1:
        std = values.std(0, ddof=1)
        ax.fill_between(rounds, mean - std, mean + std, color=ink, alpha=0.16, linewidth=0)


def _finish(ax: Axes, title: str, share: bool) -> None:
    ax.set_title(title)
    style.round_axis(ax)
    ax.margins(x=0.02)
    if share:
        style.percent(ax.yaxis)


# ---- final numbers ------------------------------------------------------------------------------


def final_values(
    values: Mapping[str, Sequence[float]], path: Path, title: str, paper: Mapping[str, float], share: bool
) -> Path:
    """A dot and whisker a method (mean, one standard deviation over runs), the paper's value beside."""
    names = list(values)
    theirs: dict[str, Any] = {"marker": "D", "mfc": "white", "mec": style.INK}
    with style.style({"axes.grid.axis": "x"}):
        drawn, (ax,) = style.figure(1, width=6.4, height=0.9 + 0.42 * len(names))
        for y, name in enumerate(names):
            v, ink = np.asarray(values[name], float), style.colour(name, names)
            std = v.std(ddof=1) if len(v) > 1 else None
            ax.errorbar(v.mean(), y, xerr=std, fmt="o", color=ink, markersize=7, capsize=3, elinewidth=1.6)
            ax.plot(v, np.full(len(v), y), "|", color=ink, alpha=0.45, markersize=9)
            if name in paper:
                ax.plot(paper[name], y, markersize=6, zorder=4, ls="", **theirs)
        ax.set_yticks(range(len(names)), names)
        ax.set_ylim(len(names) - 0.5, -0.5)
        ax.set_title(title)
        ax.tick_params(axis="y", length=0)
        if share:
            ax.xaxis.set_major_formatter(PercentFormatter(1.0))
        if paper.keys() & values.keys():
            entry = Line2D([], [], ls="", label="the paper's value", **theirs)
            ax.legend(handles=[entry], loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return style.save(drawn, path)
