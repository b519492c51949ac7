"""Who gives weight to whose model, through training, with the true groups marked."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from fedpers.core.data import Federation
from fedpers.results.plots import style
from fedpers.results.plots.heatmaps import client_order

SPECIAL = ("collaboration",)  # arrays that are drawn here: [evaluations, K, K] and `_round`
PANELS = 4


def draw(folder: Path, stored: Mapping[str, np.ndarray], federation: Federation) -> list[Path]:
    """One picture for each of SPECIAL that the run has kept."""
    return [
        through_training(stored[name], stored[f"{name}_round"], folder / f"{name}.png", federation)
        for name in SPECIAL
        if name in stored and np.ndim(stored[name]) == 3
    ]


def through_training(values: np.ndarray, rounds: np.ndarray, path: Path, federation: Federation) -> Path:
    """Weights [evaluations, K, K]: a row a client, a column a model's owner, both by true group if known."""
    K = values.shape[1]
    order = np.array([k for k in client_order(federation) if k < K])  # the last may be held out
    shown = np.unique(np.linspace(0, len(values) - 1, PANELS).round().astype(int))
    with style.style({"axes.grid": False}):
        side = float(np.clip(1.2 + 0.16 * K, 2.4, 5.0))
        drawn, axes = style.figure(len(shown), width=side * len(shown) + 0.8, height=side + 0.6)
        for ax, i in zip(axes, shown, strict=True):
            picture = ax.imshow(values[i][np.ix_(order, order)], cmap="Blues", vmin=0, vmax=1)
            ax.set_title(f"Round {int(rounds[i])}")
            _mark_groups(ax, order, federation)
        axes[0].set(ylabel="client", xlabel="owner of the model")
        drawn.colorbar(picture, ax=axes[-1], fraction=0.05, label="weight")
        return style.save(drawn, path)


def _mark_groups(ax: Axes, order: np.ndarray, federation: Federation) -> None:
    """Client numbers, and a frame around each true group."""
    names = [str(k) for k in order] if len(order) <= 25 else []
    ax.set_xticks(range(len(names)), names)
    ax.set_yticks(range(len(names)), names)
    group = federation.truth.get("group")
    if group is None or np.ndim(group) != 1:
        return
    look: dict[str, Any] = {"fill": False, "edgecolor": style.PALETTE[1], "linewidth": 1.6}
    edges = [0, *(np.flatnonzero(np.diff(np.asarray(group)[order])) + 1), len(order)]
    for first, last in pairwise(edges):
        ax.add_patch(Rectangle((first - 0.5, first - 0.5), last - first, last - first, **look))
