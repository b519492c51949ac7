"""Pictures of clients: who holds which classes, and arrays that a method explains itself with."""

import math
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedpers.core.data import Federation
from fedpers.results.plots import style

SEQUENTIAL = "YlGnBu"


def client_order(federation: Federation) -> np.ndarray:
    """Clients side by side that belong together: by true group, then by their main classes."""
    counts = federation.label_counts
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    centre = shares @ np.arange(counts.shape[1]) if counts.shape[1] else federation.num_train
    group = federation.truth.get("group", np.zeros(federation.num_clients))
    return np.lexsort((centre, np.asarray(group)))


def partition(federation: Federation, path: Path) -> Path:
    """How many samples of which class each client trains on."""
    order = client_order(federation)
    counts = federation.label_counts[order]
    if counts.shape[1] == 0:
        return _sizes(federation.num_train[order], path, federation)
    wide = len(order) > 60 or counts.shape[1] > 30
    width = 7.5 if wide else min(11.0, 2.2 + 0.24 * len(order))
    with style.style({"axes.grid": not wide, "axes.grid.axis": "both"}):
        figure, (ax,) = style.figure(
            1, width=max(width, 5), height=4.2 if wide else 1.5 + 0.24 * counts.shape[1]
        )
        if wide:
            _image(figure, ax, counts.T, "training samples")
        else:
            _bubbles(ax, counts)
        ax.set_title(f"Training samples of each class: {federation.name}, {federation.num_clients} clients")
        ax.set_ylabel("class")
        _client_axis(ax, order, federation)
        return style.save(figure, path)


def _bubbles(ax: Axes, counts: np.ndarray) -> None:
    client, label = np.nonzero(counts)
    n = counts[client, label]
    ax.scatter(client, label, s=210 * n / max(n.max(), 1), color=style.PALETTE[0], alpha=0.85, linewidths=0)
    ax.set_yticks(range(counts.shape[1]))
    ax.set_ylim(-0.7, counts.shape[1] - 0.3)
    ax.set_xlim(-0.8, len(counts) - 0.2)
    ax.tick_params(length=0)


def _sizes(num_train: np.ndarray, path: Path, federation: Federation) -> Path:
    with style.style():
        figure, (ax,) = style.figure(1, width=7, height=2.8)
        ax.bar(range(len(num_train)), num_train, color=style.PALETTE[0], width=0.8)
        ax.set_title(f"Training samples of each client: {federation.name}")
        _client_axis(ax, client_order(federation), federation)
        return style.save(figure, path)


def _client_axis(ax: Axes, order: np.ndarray, federation: Federation) -> None:
    group = federation.truth.get("group")
    step = math.ceil(len(order) / 25)
    ax.set_xticks(range(0, len(order), step), [str(k) for k in order[::step]])
    ax.set_xlabel("client")
    if group is None:
        return
    ranked = np.asarray(group)[order]
    for edge in np.flatnonzero(np.diff(ranked)) + 0.5:
        ax.axvline(edge, color="#8a919c", linewidth=0.9)
    ax.set_xlabel("client, by true group")


# ---- arrays over clients ------------------------------------------------------------------------


def heat_map(values: np.ndarray, path: Path, title: str, order: np.ndarray | None = None) -> Path:
    """An array over clients: [N] as bars, [N, K] and [N, N] as colours, clients in `order`."""
    values = np.asarray(values, float)
    n = len(values)
    order = np.arange(n) if order is None or len(order) != n else order
    if values.ndim == 1:
        return _bars(values[order], path, title, order)
    square = values.shape[1] == n and n > 2
    shown = values[np.ix_(order, order)] if square else values[order]
    with style.style({"axes.grid": False}):
        tall = float(np.clip(1.3 + 0.26 * n, 2.6, 7.0))
        wide = tall + 0.9 if square else float(np.clip(2.6 + 0.5 * values.shape[1], 3.6, 8.0))
        figure, (ax,) = style.figure(1, width=wide, height=tall)
        _image(figure, ax, shown, "", square=square)
        _ticks(ax, order, order if square else np.arange(values.shape[1]))
        if shown.size <= 150:
            _numbers(ax, shown)
        ax.set_title(title.replace("_", " ").capitalize())
        ax.set_ylabel("client")
        ax.set_xlabel("client" if square else "component")
        return style.save(figure, path)


def _bars(values: np.ndarray, path: Path, title: str, order: np.ndarray) -> Path:
    with style.style():
        figure, (ax,) = style.figure(1, width=6.5, height=2.6)
        ax.bar(range(len(values)), values, color=style.PALETTE[0], width=0.8)
        step = math.ceil(len(order) / 25)
        ax.set_xticks(range(0, len(order), step), [str(k) for k in order[::step]])
        ax.set_title(title.replace("_", " ").capitalize())
        return style.save(figure, path)


def _image(figure: Figure, ax: Axes, values: np.ndarray, label: str, square: bool = False) -> None:
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
    bar = figure.colorbar(picture, ax=ax, pad=0.02, fraction=0.08, aspect=35, label=label)
    bar.outline.set_visible(False)  # type: ignore[operator]
    for spine in ax.spines.values():
        spine.set_visible(False)
    ax.tick_params(length=0)


def _ticks(ax: Axes, rows: np.ndarray, columns: np.ndarray) -> None:
    for names, put in ((rows, ax.set_yticks), (columns, ax.set_xticks)):
        step = math.ceil(len(names) / 25)
        put(range(0, len(names), step), [str(k) for k in names[::step]])


def _numbers(ax: Axes, values: np.ndarray) -> None:
    top = np.abs(values).max() or 1.0
    for (i, j), value in np.ndenumerate(values):
        ax.text(
            j,
            i,
            f"{value:.2f}",
            ha="center",
            va="center",
            fontsize=7.5,
            color="white" if abs(value) > 0.6 * top else style.INK,
        )
