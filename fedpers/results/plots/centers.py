"""Pictures of methods with several centers: how good each is where, and which clients each serves."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from fedpers.results.membership_recovery import aligned
from fedpers.results.plots import style

SPECIAL = ("center_metric", "center_loss")  # drawn here, not as an array over clients


def draw(folder: Path, stored: Mapping[str, np.ndarray], regression: bool) -> list[Path]:
    """The pictures for what arrays.npz holds: NAME [evaluations, ...], NAME_round, truth_NAME."""
    drawn = []
    if "center_metric" in stored:
        metric, rounds = stored["center_metric"], stored["center_metric_round"]
        drawn.append(center_curves(metric, rounds, folder / "center_curves.png", regression))
    if "importance" in stored:
        weights, rounds = stored["importance"], stored["importance_round"]
        truth = stored.get("truth_membership")
        drawn.append(importance_curves(weights, rounds, truth, folder / "importance_curves.png"))
        if truth is not None and len(truth) >= weights.shape[1]:
            true = truth[: weights.shape[1]]
            drawn.append(importance_scatter(weights[-1], true, folder / "importance_scatter.png"))
    return drawn


def center_curves(values: np.ndarray, rounds: np.ndarray, path: Path, regression: bool) -> Path:
    """Every center on the hold-out samples of every source, over the rounds; [E, S, sources]."""
    sources = values.shape[2]
    with style.style():
        drawn, axes = style.figure(sources, width=3.7 * sources)
        for j, ax in enumerate(axes):
            _one_curve_per_center(ax, rounds, values[:, :, j])
            ax.set_title(f"{'MSE' if regression else 'Accuracy'} on source {j}")
            if not regression:
                style.percent(ax.yaxis)
        axes[-1].legend(loc="best")
        return style.save(drawn, path)


def importance_curves(values: np.ndarray, rounds: np.ndarray, truth: np.ndarray | None, path: Path) -> Path:
    """Mean estimated weight of each center, for clients of each true main source; [E, N, S].

    Without truth clients are grouped by the center that they end with. Dashes: the true shares.
    """
    known = truth is not None and truth.shape[0] == values.shape[1]
    group = np.asarray(truth if known else values[-1]).argmax(1)
    panels = [g for g in range(values.shape[2]) if (group == g).any()]
    with style.style():
        drawn, axes = style.figure(len(panels), width=3.7 * len(panels))
        for g, ax in zip(panels, axes, strict=True):
            _one_curve_per_center(ax, rounds, values[:, group == g].mean(1))
            for share in np.asarray(truth)[group == g].mean(0) if known else ():
                ax.axhline(share, color=style.INK, linewidth=0.9, linestyle=(0, (4, 3)))
            ax.set_title(f"Clients of {'source' if known else 'center'} {g} ({int((group == g).sum())})")
            ax.set_ylim(-0.02, 1.02)
        axes[0].set_ylabel("importance weight")
        axes[-1].legend(loc="best")
        return style.save(drawn, path)


def importance_scatter(last: np.ndarray, true: np.ndarray, path: Path) -> Path:
    """Every client's estimated weights over its true shares, a colour a source; on the diagonal they agree.

    Args:
        last: [N, S] weights at the end, centers in any order; they are matched with the sources.
        true: [N, sources].
    """
    found = aligned(last, true)
    with style.style():
        drawn, (ax,) = style.figure(1, width=3.7, height=3.4)
        ax.plot([0, 1], [0, 1], color=style.INK, linewidth=0.9, linestyle=(0, (4, 3)))
        for s in range(true.shape[1]):
            ink = style.PALETTE[s % len(style.PALETTE)]
            ax.scatter(true[:, s], found[:, s], s=12, alpha=0.6, color=ink, label=f"source {s}")
        ax.set(xlabel="true share", ylabel="importance weight", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        ax.legend(loc="best")
        return style.save(drawn, path)


def _one_curve_per_center(ax: Axes, rounds: np.ndarray, values: np.ndarray) -> None:
    """Lines of `values` [E, S] over the rounds [E]."""
    for s in range(values.shape[1]):
        ink = style.PALETTE[s % len(style.PALETTE)]
        style.curve(ax, rounds, values[:, s], label=f"center {s}", color=ink)
    style.round_axis(ax)
