"""How the objective falls, against everything that it costs; F - F* where the optimum is known."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from fedpers.results.files import CsvRow
from fedpers.results.plots import style

AXES = {
    "communications": "communications",
    "iterations": "iterations",
    "w_grads": "whole gradients in w, a client",
    "beta_grads": "whole gradients in β, a client",
    "w_sample_grads": "sample gradients in w, a client",
    "beta_sample_grads": "sample gradients in β, a client",
    "seconds": "seconds",
}
WANTED = {
    "suboptimality": "F - F*",
    "distance": "squared distance to the optimum",
    "objective": "objective F",
    "estimation": "squared distance to the true coefficients",
}
LEAST = 1e-16  # what is below, or negative by rounding, is drawn here
GapSeries = Mapping[str, np.ndarray]  # {column: [rounds in which F is known]}


def gap_series(rows: Sequence[CsvRow]) -> GapSeries:
    """Of the rounds in which F is known: "round", each of AXES and each of WANTED; seconds add up."""
    cost = [r for r in rows if r["split"] == "train"]
    seconds = np.cumsum([r.get("seconds", 0.0) for r in cost])
    known = [i for i, r in enumerate(cost) if "objective" in r]
    if not known:
        return {}
    found = {"round": np.array([cost[i]["round"] for i in known]), "seconds": seconds[known]}
    for name in (*AXES, *WANTED):
        if name not in found and all(name in cost[i] for i in known):
            found[name] = np.array([float(cost[i][name]) for i in known])
    return {"communications": found["round"], **found}


def draw_run(rows: Sequence[CsvRow], folder: Path) -> list[Path]:
    """F - F* (or F) of one run, and the distance; nothing for a method that tells neither."""
    return compare({"": [rows]}, folder / "objective.png")


def compare(runs: Mapping[str, Sequence[Sequence[CsvRow]]], path: Path) -> list[Path]:
    """Curves of {method: rows of each run}: means over the runs, a panel an axis along which any moves."""
    found = {name: [s for s in map(gap_series, many) if s] for name, many in runs.items()}
    found = {name: many for name, many in found.items() if many}
    every = [s for many in found.values() for s in many]
    if not every:
        return []
    known = all("suboptimality" in s for s in every)
    y = "suboptimality" if known else "objective"
    panels = [(x, y) for x in AXES if any(x in s and s[x].max() > 0 for s in every)]
    panels += [("communications", "distance")] if known else []
    with style.style({"axes.grid.axis": "both"}):
        drawn, axes = style.figure(len(panels), width=4.0 * min(4, len(panels)), across=4)
        for ax, (of_x, of_y) in zip(axes, panels, strict=True):
            for name, many in found.items():
                _band(ax, many, of_x, of_y, name, style.colour(name, list(found)))
            scale = _scale([s[of_x][-1] for s in every if of_x in s])
            ax.set(xlabel=AXES[of_x], ylabel=WANTED[of_y], yscale="log" if known else "linear", xscale=scale)
        style.legend_below(drawn, axes[0])
        return [style.save(drawn, path)]


def _scale(ends: Sequence[float]) -> str:
    """Logarithmic where the runs end orders of magnitude from each other."""
    ends = [e for e in ends if e > 0]
    return "log" if max(ends) > 30 * min(ends) else "linear"


def _band(ax: Axes, many: Sequence[GapSeries], x: str, y: str, label: str, ink: str) -> None:
    """The mean of both coordinates in the rounds that all runs have, and the spread of y."""
    many = [s for s in many if x in s and s[x].max() > 0]
    if not many:
        return
    rounds = sorted(set.intersection(*(set(s["round"]) for s in many)))
    at = [np.searchsorted(s["round"], rounds) for s in many]
    xs, ys = (np.stack([s[c][i] for s, i in zip(many, at, strict=True)]) for c in (x, y))
    ys = ys if y == "objective" else np.maximum(ys, LEAST)
    ax.plot(xs.mean(0), ys.mean(0), color=ink, label=label, linewidth=1.4)
    if len(ys) > 1:
        ax.fill_between(xs.mean(0), ys.min(0), ys.max(0), color=ink, alpha=0.16, linewidth=0)
