"""Pictures of clients: who holds which classes, and the arrays that a method explains itself with."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedpers.core.data import Federation
from fedpers.results.plots import style

SEQUENTIAL = "YlGnBu"


def client_order(federation: Federation) -> np.ndarray:
    """Client numbers [N] by true group, then by mean class number, so that like clients are neighbours."""
    counts = federation.label_counts
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    centre = shares @ np.arange(counts.shape[1]) if counts.shape[1] else federation.num_train
    group = federation.truth.get("group", np.zeros(federation.num_clients))
    return np.lexsort((centre, np.asarray(group)))


def partition(federation: Federation, path: Path) -> Path:
    """How many samples of each class each client trains on; without classes, how many in all."""
    order = client_order(federation)
    counts = federation.label_counts[order]
    n, classes = counts.shape
    wide = n > 60 or classes > 30
    with style.style({"axes.grid": not wide, "axes.grid.axis": "both"} if classes else {}):
        title = f"Training samples of each class: {federation.name}, {federation.num_clients} clients"
        if not classes:
            drawn, (ax,) = style.figure(1, width=7, height=2.8)
            ax.bar(range(n), federation.num_train[order], color=style.PALETTE[0], width=0.8)
            title = f"Training samples of each client: {federation.name}"
        elif wide:
            drawn, (ax,) = style.figure(1, width=7.5, height=4.2)
            _image(drawn, ax, counts.T, "training samples")
        else:
            width = max(min(11.0, 2.2 + 0.24 * n), 5)
            drawn, (ax,) = style.figure(1, width=width, height=1.5 + 0.24 * classes)
            _bubbles(ax, counts)
        ax.set_title(title)
        ax.set_ylabel("class" if classes else "")
        _client_axis(ax, order, federation)
        return style.save(drawn, path)


def _bubbles(ax: Axes, counts: np.ndarray) -> None:
    client, label = np.nonzero(counts)
    n = counts[client, label]
    ax.scatter(client, label, s=210 * n / max(n.max(), 1), color=style.PALETTE[0], alpha=0.85, linewidths=0)
    ax.set_yticks(range(counts.shape[1]))
    ax.set_ylim(-0.7, counts.shape[1] - 0.3)
    ax.set_xlim(-0.8, len(counts) - 0.2)
    ax.tick_params(length=0)


def _client_axis(ax: Axes, order: np.ndarray, federation: Federation) -> None:
    style.number_ticks(ax.xaxis, order)
    group = federation.truth.get("group")
    ax.set_xlabel("client" if group is None else "client, by true group")
    if group is not None:
        for edge in np.flatnonzero(np.diff(np.asarray(group)[order])) + 0.5:
            ax.axvline(edge, color="#8a919c", linewidth=0.9)


# ---- arrays over clients ------------------------------------------------------------------------


def heat_map(values: np.ndarray, path: Path, title: str, order: np.ndarray | None = None) -> Path:
    """An array over clients: [N] as bars, [N, K] and [N, N] as colours, clients in `order`."""
    values = np.asarray(values, float)
    n = len(values)
    order = np.arange(n) if order is None or len(order) != n else order
    title = title.replace("_", " ").capitalize()
    if values.ndim == 1:
        return _bars(values[order], path, title, order)
    square = values.shape[1] == n and n > 2
    shown = values[np.ix_(order, order)] if square else values[order]
    with style.style({"axes.grid": False}):
        tall = float(np.clip(1.3 + 0.26 * n, 2.6, 7.0))
        wide = tall + 0.9 if square else float(np.clip(2.6 + 0.5 * values.shape[1], 3.6, 8.0))
        drawn, (ax,) = style.figure(1, width=wide, height=tall)
        _image(drawn, ax, shown, "", square=square)
        style.number_ticks(ax.yaxis, order)
        style.number_ticks(ax.xaxis, order if square else np.arange(values.shape[1]))
        if shown.size <= 150:
            _numbers(ax, shown)
        ax.set(title=title, ylabel="client", xlabel="client" if square else "component")
        return style.save(drawn, path)


def _bars(values: np.ndarray, path: Path, title: str, order: np.ndarray) -> Path:
    with style.style():
        drawn, (ax,) = style.figure(1, width=6.5, height=2.6)
        ax.bar(range(len(values)), values, color=style.PALETTE[0], width=0.8)
        style.number_ticks(ax.xaxis, order)
        ax.set_title(title)
        return style.save(drawn, path)


def _image(drawn: Figure, ax: Axes, values: np.ndarray, label: str, square: bool = False) -> None:
    """Colours from 0, or from the least value; around 0 where there are negative values."""
    signed = values.min() < 0
    top = float(np.abs(values).max()) or 1.0
    picture = ax.imshow(
        values,
        aspect="equal" if square else "auto",
        interpolation="nearest",
        cmap="RdBu_r" if signed else SEQUENTIAL,
        vmin=-top if signed else min(0.0, float(values.min())),
        vmax=top,
    )
    bar = drawn.colorbar(picture, ax=ax, pad=0.02, fraction=0.08, aspect=35, label=label)
    bar.outline.set_visible(False)  # type: ignore[operator]
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)


def _numbers(ax: Axes, values: np.ndarray) -> None:
    top = np.abs(values).max() or 1.0
    for (i, j), value in np.ndenumerate(values):
        ink = "white" if abs(value) > 0.6 * top else style.INK
        ax.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=7.5, color=ink)
