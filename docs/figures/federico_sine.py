"""Draw FedeRiCo's introductory figure: python docs/figures/federico_sine.py OUT.png [overrides]."""

import sys
from pathlib import Path

import numpy as np
import torch

from fedpers.app.build import assemble
from fedpers.config.compose import load
from fedpers.results.plots.style import INK, PALETTE, figure, save, style
from fedpers.simulate import simulate


def run(method: str, overrides: list[str]) -> tuple:
    """(parts, cohort) after all rounds of the experiment."""
    fixed = ["+experiment=federico_fig1_sine", f"method={method}", "eval_every=0"]
    config = load([*fixed, *overrides])
    parts = assemble(config)
    return parts, simulate(parts.strategy, parts.client, parts.federation, config.rounds)


def fits(parts, cohort) -> list[tuple[np.ndarray, np.ndarray]]:
    """Each client's prediction over its own interval."""
    found = []
    for k in range(parts.federation.num_clients):
        x = parts.federation.client(k).train.x
        grid = torch.linspace(float(x.min()), float(x.max()), 30)[:, None]
        state = cohort.state(k, (10**6, 0))
        with torch.no_grad():
            y = parts.client.predict(parts.strategy.evaluation_message(parts.strategy.state, k), state, grid)
        found.append((grid[:, 0].numpy(), y[:, 0].numpy()))
    return found


def main(out: Path, overrides: list[str]) -> None:
    """Data, FedAvg's line, the clients' mixtures; the weights beside them."""
    (ours, cohort), (one, other) = run("federico", overrides), run("fedavg", overrides)
    with style({"axes.grid": False}):
        drawn, (left, right) = figure(2, width=9.5, height=3.6)
        for k, (x, y) in enumerate(fits(ours, cohort)):
            data = ours.federation.client(k).train
            ink = PALETTE[k % len(PALETTE)]
            left.scatter(data.x[:, 0], data.y.reshape(-1), s=9, color=ink, alpha=0.45, linewidths=0)
            left.plot(x, y, color=ink, linewidth=2.4)
        line = [np.concatenate(v) for v in zip(*fits(one, other), strict=True)]
        left.plot(*line, color=INK, linewidth=1.2, linestyle=(0, (4, 2)), label="FedAvg")
        left.set(title="Eight clients on a sine curve", xlabel="x - π", ylabel="y")
        left.legend(loc="upper right")
        weights = ours.strategy.explain(ours.strategy.state)["collaboration"]
        shown = right.imshow(weights, cmap="Blues", vmin=0, vmax=1)
        drawn.colorbar(shown, ax=right, label="weight")
        right.set(title="Collaboration", xlabel="owner of the model", ylabel="client")
        save(drawn, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
