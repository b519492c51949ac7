"""Pictures of methods with several centers: how good each is where, and who is near which."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fedpers.results.plots import style

SPECIAL = ("center_metric", "center_loss")  # drawn here, not as an array over clients


def draw(folder: Path, stored: Mapping[str, np.ndarray], regression: bool) -> list[Path]:
    """The pictures for what arrays.npz holds: NAME [evaluations, ...], NAME_round, truth_NAME."""
    drawn = []
    if "center_metric" in stored:
        drawn.append(
            center_curves(
                stored["center_metric"],
                stored["center_metric_round"],
                folder / "center_curves.png",
                regression,
            )
        )
    if "importance" in stored:
        drawn.append(
            importance_curves(
                stored["importance"],
                stored["importance_round"],
                stored.get("truth_membership"),
                folder / "importance_curves.png",
            )
        )
    return drawn


def center_curves(values: np.ndarray, rounds: np.ndarray, path: Path, regression: bool) -> Path:
    """Every center on the hold-out samples of every source, over the rounds; [E, S, sources]."""
    sources = values.shape[2]
    with style.style():
        figure, axes = style.figure(sources, width=3.7 * sources)
        for j, ax in enumerate(axes):
            for s in range(values.shape[1]):
                ax.plot(
                    rounds,
                    values[:, s, j],
                    label=f"center {s}",
                    color=style.PALETTE[s % len(style.PALETTE)],
                    marker="o" if len(rounds) < 3 else None,
                )
            ax.set_title(f"{'MSE' if regression else 'Accuracy'} on source {j}")
            ax.set_xlabel("round")
            ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
            if not regression:
                ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes[-1].legend(loc="best")
        return style.save(figure, path)


def importance_curves(values: np.ndarray, rounds: np.ndarray, truth: np.ndarray | None, path: Path) -> Path:
    """Mean estimated weight of each center, for clients of each true main source; [E, N, S].

    Without truth clients are grouped by the center that they end with. Dashes: the true shares.
    """
    known = truth is not None and truth.shape[0] == values.shape[1]
    group = np.asarray(truth if known else values[-1]).argmax(1)
    panels = [g for g in range(values.shape[2]) if (group == g).any()]
    with style.style():
        figure, axes = style.figure(len(panels), width=3.7 * len(panels))
        for g, ax in zip(panels, axes, strict=True):
            for s in range(values.shape[2]):
                ax.plot(
                    rounds,
                    values[:, group == g, s].mean(1),
                    label=f"center {s}",
                    color=style.PALETTE[s % len(style.PALETTE)],
                    marker="o" if len(rounds) < 3 else None,
                )
            for share in np.asarray(truth)[group == g].mean(0) if known else ():
                ax.axhline(share, color=style.INK, linewidth=0.9, linestyle=(0, (4, 3)))
            what = "source" if known else "center"
            ax.set_title(f"Clients of {what} {g} ({int((group == g).sum())})")
            ax.set_xlabel("round")
            ax.set_ylim(-0.02, 1.02)
            ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        axes[0].set_ylabel("importance weight")
        axes[-1].legend(loc="best")
        return style.save(figure, path)
