"""Who gives weight to whose model, through training, with the true groups marked."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from fedpers.core.data import Federation
from fedpers.results.membership_recovery import user_group
from fedpers.results.plots import style
from fedpers.results.plots.heatmaps import client_order

SPECIAL = ("collaboration",)  # arrays that are drawn here: [evaluations, K, K] and `_round`
PANELS = 4
CLIENTS = 12  # whose weights are drawn over the rounds


def draw(folder: Path, stored: Mapping[str, np.ndarray], federation: Federation) -> list[Path]:
    """Pictures of each of SPECIAL that the run has kept; by users too where true groups are known."""
    drawn = []
    for name in SPECIAL:
        if name not in stored or np.ndim(stored[name]) != 3:
            continue
        values, rounds = stored[name], stored[f"{name}_round"]
        drawn.append(through_training(values, rounds, folder / f"{name}.png", federation))
        drawn.append(over_rounds(values, rounds, folder / f"{name}_over_rounds.png", federation))
        group = federation.truth.get("group")
        if group is not None and np.ndim(group) == 1:
            users = user_group(values[-1], np.asarray(group)[: values.shape[1]])
            path = folder / f"{name}_by_user.png"
            drawn.append(through_training(values, rounds, path, federation, users))
    return drawn


def through_training(
    values: np.ndarray,
    rounds: np.ndarray,
    path: Path,
    federation: Federation,
    users: np.ndarray | None = None,
) -> Path:
    """Weights [evaluations, K, K]: a row a client, a column a model, both by true group if known.

    Args:
        users: [K] the group that uses each model most; models are then in that order, not their owners'.
    """
    K = values.shape[1]
    order = np.array([k for k in client_order(federation) if k < K])  # the last may be held out
    models = order if users is None else order[np.argsort(users[order], kind="stable")]
    shown = np.unique(np.linspace(0, len(values) - 1, PANELS).round().astype(int))
    with style.style({"axes.grid": False}):
        side = float(np.clip(1.2 + 0.16 * K, 2.4, 5.0))
        drawn, axes = style.figure(len(shown), width=side * len(shown) + 0.8, height=side + 0.6)
        for ax, i in zip(axes, shown, strict=True):
            picture = ax.imshow(values[i][np.ix_(order, models)], cmap="Blues", vmin=0, vmax=1)
            ax.set_title(f"Round {int(rounds[i])}")
            _number(ax, order, models)
            if users is None:
                _mark_groups(ax, order, federation)
        by = "owner of the model" if users is None else "owner of the model, by the group that uses it"
        axes[0].set(ylabel="client", xlabel=by)
        drawn.colorbar(picture, ax=axes[-1], fraction=0.05, label="weight")
        return style.save(drawn, path)


def over_rounds(values: np.ndarray, rounds: np.ndarray, path: Path, federation: Federation) -> Path:
    """A panel a client, a line a model: of the own group in one colour, if known, of others in grey."""
    K, blue, grey = values.shape[1], style.PALETTE[0], style.PALETTE[9]
    clients = [int(k) for k in client_order(federation) if k < K][:CLIENTS]
    group = federation.truth.get("group")
    same = np.arange(K) if group is None or np.ndim(group) != 1 else np.asarray(group)[:K]
    with style.style():
        drawn, axes = style.figure(len(clients), width=2.2 * min(4, len(clients)), height=1.8, across=4)
        for ax, i in zip(axes, clients, strict=True):
            for j in range(K):
                ink = blue if same[i] == same[j] else grey
                style.curve(ax, rounds, values[:, i, j], color=ink, linewidth=2.4 if i == j else 1.2)
            ax.set(title=f"Client {i}", ylim=(-0.03, 1.03))
            style.round_axis(ax)
        axes[0].set(ylabel="weight")
        return style.save(drawn, path)


def _number(ax: Axes, clients: np.ndarray, models: np.ndarray) -> None:
    few = len(clients) <= 25
    ax.set_xticks(range(len(models) if few else 0), [str(k) for k in models] if few else [])
    ax.set_yticks(range(len(clients) if few else 0), [str(k) for k in clients] if few else [])


def _mark_groups(ax: Axes, order: np.ndarray, federation: Federation) -> None:
    """A frame around each true group."""
    group = federation.truth.get("group")
    if group is None or np.ndim(group) != 1:
        return
    look: dict[str, Any] = {"fill": False, "edgecolor": style.PALETTE[1], "linewidth": 1.6}
    edges = [0, *(np.flatnonzero(np.diff(np.asarray(group)[order])) + 1), len(order)]
    for first, last in pairwise(edges):
        ax.add_patch(Rectangle((first - 0.5, first - 0.5), last - first, last - first, **look))
