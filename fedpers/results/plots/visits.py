"""How accurate clients are by how long ago they last took part: whether heads of their own grow stale."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from fedpers.results import files
from fedpers.results.plots import style

SPECIAL = ("last_visit",)  # [evaluations, N] the round of each client's last visit; 0: it had none
GROUPS = 8
LINES = {"accuracy": "accuracy", "accuracy_before": "before local adaptation"}


def draw(out: Path, folder: Path, stored: Mapping[str, np.ndarray]) -> list[Path]:
    """Accuracy in clients.csv against rounds since the last visit; nothing if these are alike for all.

    Args:
        out: the run directory.
        folder: where the picture goes.
        stored: what arrays.npz holds.
    """
    path = out / "clients.csv"
    if "last_visit" not in stored or not path.is_file():
        return []
    visits, now = stored["last_visit"][-1], int(stored["last_visit_round"][-1])
    rows, columns = files.read_csv(path)
    rows = [r for r in rows if int(r["partition_id"]) < len(visits) and visits[int(r["partition_id"])] > 0]
    idle = np.array([now - visits[int(r["partition_id"])] for r in rows])
    if len(np.unique(idle)) < 2:
        return []
    values = {c: np.array([float(r.get(c, np.nan)) for r in rows]) for c in LINES if c in columns}
    return [_scatter(idle, values, folder / "last_visit.png")]


def _scatter(idle: np.ndarray, values: Mapping[str, np.ndarray], path: Path) -> Path:
    with style.style():
        drawn, (ax,) = style.figure(1, width=5.2)
        for ink, (column, shown) in zip(style.PALETTE, values.items(), strict=False):
            ax.plot(idle, shown, ".", color=ink, alpha=0.3, markersize=5)
            _means(ax, idle, shown, color=ink, label=LINES[column])
        ax.set_title("Accuracy of clients by their last visit")
        style.round_axis(ax)
        ax.set_xlabel("rounds since the client last took part")
        style.percent(ax.yaxis)
        ax.legend(loc="best")
        return style.save(drawn, path)


def _means(ax: Axes, idle: np.ndarray, shown: np.ndarray, **line: str) -> None:
    """A line through the means of groups of clients, as many in each, in the order of their visits."""
    order = np.argsort(idle, kind="stable")
    groups = [g for g in np.array_split(order, GROUPS) if len(g)]
    means = [float(np.nanmean(shown[g])) if np.isfinite(shown[g]).any() else np.nan for g in groups]
    style.curve(ax, [float(idle[g].mean()) for g in groups], means, **line)
