"""How far each client's own model is from the shared one: who needed to be personal."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedpers.core.data import Federation
from fedpers.results import files
from fedpers.results.plots import heatmaps, style


def draw(out: Path, folder: Path, federation: Federation) -> list[Path]:
    """A bar a client, from the column `apart` of clients.csv; nothing for a method without it."""
    path = out / "clients.csv"
    rows, columns = files.read_csv(path) if path.is_file() else ([], [])
    if "apart" not in columns:
        return []
    known = {int(r["partition_id"]): float(r["apart"]) for r in rows if "apart" in r}
    order = [int(k) for k in heatmaps.client_order(federation) if k in known]
    return [_bars(order, np.array([known[k] for k in order]), folder / "heterogeneity.png")]


def _bars(clients: Sequence[int], apart: np.ndarray, path: Path) -> Path:
    with style.style():
        drawn, (ax,) = style.figure(1, width=max(4.3, min(11.0, 2.2 + 0.2 * len(clients))), height=2.8)
        ax.bar(range(len(clients)), apart, color=style.PALETTE[0], width=0.8)
        ax.axhline(float(apart.mean()), color=style.INK, linewidth=1, linestyle=(0, (4, 2)), label="mean")
        ax.set_title("Distance of each client's own model from the shared one")
        ax.set(xlabel="client, like ones side by side", ylabel="‖β - u‖")
        style.number_ticks(ax.xaxis, np.array(clients))
        ax.legend(loc="best")
        return style.save(drawn, path)
