"""The pictures of a run and of a comparison of runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fedpers.core.data import Federation
from fedpers.results import files
from fedpers.results.files import Row
from fedpers.results.plots import centers, collaboration, heatmaps, optimality_gap, style

PANELS = (("accuracy", "Accuracy"), ("worst_decile", "Worst tenth of the clients"), ("loss", "Loss"))
Run = Sequence[Row]  # the rows of a metrics.csv


def draw_run(out: Path, federation: Federation, arrays: Mapping[str, np.ndarray]) -> list[Path]:
    """All pictures of one run, in `out`/plots."""
    folder = out / "plots"
    folder.mkdir(exist_ok=True)
    rows, _ = files.read_csv(out / "metrics.csv")
    drawn = [heatmaps.partition(federation, folder / "partition.png")]
    if any(r["split"] == "test" for r in rows):
        drawn.append(learning_curves(rows, folder / "learning_curves.png"))
    drawn += optimality_gap.draw_run(rows, folder)
    order = heatmaps.client_order(federation)
    for name, value in arrays.items():
        special = name in (*centers.SPECIAL, *collaboration.SPECIAL)
        if 1 <= np.ndim(value) <= 2 and np.size(value) and not special:
            drawn.append(heatmaps.heat_map(value, folder / f"{name}.png", name, order))
    stored = files.read_arrays(out / "arrays.npz")
    drawn += collaboration.draw(folder, stored, federation)
    return drawn + centers.draw(folder, stored, federation.task == "regression")


# ---- curves -------------------------------------------------------------------------------------


def learning_curves(rows: Run, path: Path) -> Path:
    """Accuracy and loss over the rounds of one run, on test and validation splits."""
    panels = [p for p in (("accuracy", "Accuracy"), ("loss", "Loss")) if any(p[0] in r for r in rows)]
    with style.style():
        figure, axes = style.figure(len(panels))
        for ax, (name, title) in zip(axes, panels, strict=True):
            _line(ax, rows, "test", name, "test", color=style.PALETTE[0])
            _line(ax, rows, "valid", name, "validation", color=style.PALETTE[1], linewidth=1.3)
            _line(
                ax,
                rows,
                "test",
                f"{name}_before",
                "test, before adaptation",
                color=style.PALETTE[0],
                linestyle=(0, (4, 2)),
                linewidth=1.3,
            )
            if name == "accuracy":
                _line(
                    ax,
                    rows,
                    "test",
                    "worst_decile",
                    "test, worst tenth of clients",
                    color=style.PALETTE[3],
                    linewidth=1.3,
                )
            _finish(ax, title, share=name == "accuracy")
            ax.legend(loc="best")
        return style.save(figure, path)


def compare(runs: Mapping[str, Sequence[Run]], path: Path, split: str = "test") -> Path:
    """Curves of several methods: the mean over seeds, and one standard deviation around it."""
    everything = [row for many in runs.values() for rows in many for row in rows]
    panels = [p for p in PANELS if any(p[0] in r and r["split"] == split for r in everything)]
    with style.style():
        figure, axes = style.figure(len(panels), height=3.3)
        for ax, (name, title) in zip(axes, panels, strict=True):
            for method, many in runs.items():
                _band(ax, many, split, name, method, style.colour(method, list(runs)))
            _finish(ax, title, share=panels[0][0] == "accuracy" and name != "loss")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(6, len(labels)))
        return style.save(figure, path)


def _line(ax: Axes, rows: Run, split: str, name: str, label: str, **style: Any) -> None:
    t, y = series(rows, split, name)
    if len(t):
        ax.plot(t, y, label=label, marker="o" if len(t) < 3 else None, **style)


def _band(ax: Axes, many: Sequence[Run], split: str, name: str, label: str, ink: str) -> None:
    curves = [dict(zip(*series(rows, split, name), strict=True)) for rows in many]
    rounds = sorted(set.intersection(*(set(c) for c in curves))) if curves else []
    if not rounds:
        return
    values = np.array([[c[t] for t in rounds] for c in curves])
    mean = values.mean(0)
    ax.plot(rounds, mean, color=ink, label=label, marker="o" if len(rounds) < 3 else None)
    if len(values) > 1:
        std = values.std(0, ddof=1)
        ax.fill_between(rounds, mean - std, mean + std, color=ink, alpha=0.16, linewidth=0)


def series(rows: Run, split: str, name: str) -> tuple[list[int], list[float]]:
    """(rounds, values) of a column of one split, where it has values."""
    found = [(r["round"], float(r[name])) for r in rows if r["split"] == split and name in r]
    return [t for t, _ in found], [v for _, v in found]


def _finish(ax: Axes, title: str, share: bool) -> None:
    ax.set_title(title)
    ax.set_xlabel("round")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    ax.margins(x=0.02)
    if share:
        ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


# ---- final numbers ------------------------------------------------------------------------------


def final_values(
    values: Mapping[str, Sequence[float]],
    path: Path,
    title: str,
    paper: Mapping[str, float] | None = None,
    share: bool = False,
) -> Path:
    """A dot and whisker a method (mean, one standard deviation over seeds), the paper's beside."""
    names, paper = list(values), paper or {}
    with style.style({"axes.grid.axis": "x"}):
        figure, (ax,) = style.figure(1, width=6.4, height=0.9 + 0.42 * len(names))
        for y, name in enumerate(names):
            v = np.asarray(values[name], float)
            ink = style.colour(name, names)
            ax.errorbar(
                v.mean(),
                y,
                xerr=v.std(ddof=1) if len(v) > 1 else None,
                fmt="o",
                color=ink,
                markersize=7,
                capsize=3,
                elinewidth=1.6,
            )
            ax.plot(v, np.full(len(v), y), "|", color=ink, alpha=0.45, markersize=9)
            if name in paper:
                ax.plot(paper[name], y, "D", mfc="white", mec=style.INK, markersize=6, zorder=4)
        ax.set_yticks(range(len(names)), names)
        ax.set_ylim(len(names) - 0.5, -0.5)
        ax.set_title(title)
        ax.tick_params(axis="y", length=0)
        if share:
            ax.xaxis.set_major_formatter(PercentFormatter(1.0))
        if any(n in paper for n in names):
            ax.legend(
                handles=[
                    Line2D([], [], ls="", marker="D", mfc="white", mec=style.INK, label="the paper's value")
                ],
                loc="upper left",
                bbox_to_anchor=(1.0, 1.0),
            )
        return style.save(figure, path)
