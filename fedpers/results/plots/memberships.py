"""Who belongs to which canonical model, as it grows through training, beside the truth where it is known."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedpers.results.membership_recovery import as_shares, recovery
from fedpers.results.plots import style

PANELS = 4
ARRAY = "membership"  # [evaluations, N, K], and `_round`


def draw(folder: Path, stored: Mapping[str, np.ndarray], truth: Mapping[str, np.ndarray]) -> list[Path]:
    """Small multiples, and a histogram of distances to the truth, of a run with several evaluations."""
    values = stored.get(ARRAY)
    if values is None or np.ndim(values) != 3 or len(values) < 2 or values.shape[2] < 2:
        return []
    rounds, known = stored[f"{ARRAY}_round"], truth.get("membership", truth.get("group"))
    shown = np.unique(np.linspace(0, len(values) - 1, PANELS).round().astype(int))
    true = None if known is None else as_shares(known)[: values.shape[1]]
    drawn = [growth(values[shown], rounds[shown], true, folder / "memberships.png")]
    if true is not None:
        drawn.append(distances(values[shown], rounds[shown], true, folder / "recovery.png"))
    return drawn


def rows_and_columns(last: np.ndarray, true: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """(clients, models) in the order to draw them: models as they fit the truth, clients by their largest.

    Args:
        last: [N, K] memberships at the end.
        true: [N, K'] shares, or None.
    """
    from scipy.optimize import linear_sum_assignment

    columns = np.arange(last.shape[1])
    if true is not None and true.shape[1] == last.shape[1]:
        columns = linear_sum_assignment(np.abs(true[:, :, None] - last[:, None, :]).sum(0))[1]
    ordered = last[:, columns]
    return np.lexsort((-ordered.max(1), ordered.argmax(1))), columns


def growth(values: np.ndarray, rounds: np.ndarray, true: np.ndarray | None, path: Path) -> Path:
    """A panel a round, a row a client, a column a model; the truth last."""
    clients, models = rows_and_columns(values[-1], true)
    panels = [(f"Round {int(t)}", v[np.ix_(clients, models)]) for t, v in zip(rounds, values, strict=True)]
    if true is not None:
        panels.append(("Truth", true[clients]))
    with style.style({"axes.grid": False}):
        height = float(np.clip(1.2 + 0.03 * len(clients), 2.6, 5.0))
        drawn, axes = style.figure(len(panels), width=1.7 * len(panels) + 0.8, height=height)
        for ax, (title, shares) in zip(axes, panels, strict=True):
            picture = ax.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
            ax.set(title=title, xticks=range(shares.shape[1]), yticks=[])
        axes[0].set(ylabel=f"{len(clients)} clients, by their largest share", xlabel="model")
        drawn.colorbar(picture, ax=axes[-1], fraction=0.08, label="membership")
        return style.save(drawn, path)


def distances(values: np.ndarray, rounds: np.ndarray, true: np.ndarray, path: Path) -> Path:
    """A histogram of clients' total variation to the truth in each of the rounds."""
    with style.style():
        drawn, (ax,) = style.figure(1, width=5.0, height=2.8)
        for i, (t, v) in enumerate(zip(rounds, values, strict=True)):
            edges = np.linspace(0, 1, 26)
            ink = style.PALETTE[i % len(style.PALETTE)]
            ax.hist(recovery(v, true), edges, histtype="step", color=ink, label=f"round {int(t)}")
        ax.set(xlabel="total variation to the true membership", ylabel="clients")
        ax.legend(loc="best")
        return style.save(drawn, path)
