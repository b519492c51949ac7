"""How the objective falls, against everything that it costs; F - F* where the optimum is known."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from fedpers.results.files import Row
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
Run = Sequence[Row]  # the rows of a metrics.csv


def table(rows: Run) -> dict[str, np.ndarray]:
    """The rounds in which F is known: each axis and each of WANTED, [rounds]; seconds add up."""
    cost = [r for r in rows if r["split"] == "train"]
    seconds = np.cumsum([r.get("seconds", 0.0) for r in cost])
    known = [i for i, r in enumerate(cost) if "objective" in r]
    found = {"round": np.array([cost[i]["round"] for i in known]), "seconds": seconds[known]}
    for name in (*AXES, *WANTED):
        if name not in found and known and all(name in cost[i] for i in known):
            found[name] = np.array([float(cost[i][name]) for i in known])
    return found | {"communications": found.get("communications", found["round"])} if known else {}


def draw_run(rows: Run, folder: Path) -> list[Path]:
    """F - F* (or F) of one run, and the distance; nothing for a method that tells neither."""
    return compare({"": [rows]}, folder / "objective.png")


def compare(runs: Mapping[str, Sequence[Run]], path: Path) -> list[Path]:
    """Several methods: means over seeds, a panel for each axis along which any of them moves."""
    tables = {name: [t for t in map(table, many) if t] for name, many in runs.items()}
    tables = {name: many for name, many in tables.items() if many}
    every = [t for many in tables.values() for t in many]
    if not every:
        return []
    known = all("suboptimality" in t for t in every)
    y = "suboptimality" if known else "objective"
    panels = [(x, y) for x in AXES if any(x in t and t[x].max() > 0 for t in every)]
    panels += [("communications", "distance")] if known else []
    with style.style({"axes.grid.axis": "both"}):
        figure, axes = style.figure(len(panels), width=4.0 * min(4, len(panels)), across=4)
        for ax, (of_x, of_y) in zip(axes, panels, strict=True):
            for name, many in tables.items():
                _curve(ax, many, of_x, of_y, name, style.colour(name, list(tables)))
            ax.set(
                xlabel=AXES[of_x],
                ylabel=WANTED[of_y],
                yscale="log" if known else "linear",
                xscale=_scale([t[of_x][-1] for t in every if of_x in t]),
            )
        handles, labels = axes[0].get_legend_handles_labels()
        if any(labels):
            figure.legend(handles, labels, loc="outside lower center", ncols=min(6, len(labels)))
        return [style.save(figure, path)]


def _scale(ends: Sequence[float]) -> str:
    """Logarithmic where the runs end orders of magnitude from each other."""
    ends = [e for e in ends if e > 0]
    return "log" if max(ends) > 30 * min(ends) else "linear"


def _curve(ax: Axes, many: Sequence[Mapping[str, np.ndarray]], x: str, y: str, label: str, ink: str) -> None:
    """The mean of both coordinates in the rounds that all runs have, and the spread of y."""
    many = [t for t in many if x in t and t[x].max() > 0]
    if not many:
        return
    rounds = sorted(set.intersection(*(set(t["round"]) for t in many)))
    at = [np.searchsorted(t["round"], rounds) for t in many]
    xs = np.stack([t[x][i] for t, i in zip(many, at, strict=True)])
    ys = np.stack([t[y][i] for t, i in zip(many, at, strict=True)])
    ys = ys if y == "objective" else np.maximum(ys, LEAST)
    ax.plot(xs.mean(0), ys.mean(0), color=ink, label=label, linewidth=1.4)
    if len(ys) > 1:
        ax.fill_between(xs.mean(0), ys.min(0), ys.max(0), color=ink, alpha=0.16, linewidth=0)
