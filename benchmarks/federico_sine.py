"""FedeRiCo's introductory example, client by client: test error beside Local's, and beside what is best.

Eight lines on a sine curve, five seeds: for each client the mean squared error on its test points, in
units of Local's. "least squares" is what FedeRiCo and Local tend to: each client's own line by least squares,
then the weights of the likelihood; nothing is learnt in it.

    python benchmarks/federico_sine.py
"""

from pathlib import Path

import numpy as np
import torch

from fedpers.app.build import assemble
from fedpers.bench.main import keep
from fedpers.bench.work import Result
from fedpers.config import compose
from fedpers.core.data import Data
from fedpers.simulate import simulate

FILE = Path(__file__).parent / "results" / "federico_sine.json"
SEEDS = range(5)
WAYS = {
    "as configured": [],
    "averaged losses": ["method.memory=average"],
    "averaged, all to all": ["method.memory=average", "method.num_neighbours=all"],
    "averaged, 1 round alone": ["method.memory=average", "method.warmup=1"],
    "summed, 1 round alone": ["method.warmup=1"],
}
CONSTANT = ["hyper.all.local.schedule=constant", "hyper.all.local.horizon=0"]  # the rate does not fall
FIXED = ["+experiment=federico_fig1_sine", "eval_every=0"]


def errors(method: str, seed: int, overrides: list[str]) -> np.ndarray:
    """Each client's mean squared error on its test points, [8]."""
    config = compose.load([*FIXED, f"method={method}", f"seed={seed}", *overrides])
    parts = assemble(config)
    cohort = simulate(parts.strategy, parts.client, parts.federation, config.rounds)
    found = []
    for k in range(parts.federation.num_clients):
        test, state = parts.federation.client(k).test, cohort.state(k, (10**6, 0))
        with torch.no_grad():
            y = parts.client.predict(
                parts.strategy.evaluation_message(parts.strategy.state, k), state, test.x
            )
        found.append(float(((y - test.y.reshape(y.shape)) ** 2).mean()))
    return np.array(found)


def least_squares(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(errors of each client's own line, of all lines under the likelihood's weights), [8] each."""
    config = compose.load([*FIXED, "method=federico", f"seed={seed}"])
    fed = assemble(config).federation
    clients = [fed.client(k) for k in range(fed.num_clients)]
    train, test = [_design(c.train) for c in clients], [_design(c.test) for c in clients]
    lines = np.stack([np.linalg.lstsq(X, y, rcond=None)[0] for X, y in train])
    losses = np.array([((X @ lines.T - y[:, None]) ** 2).mean(0) for X, y in train])
    w = np.exp(-config.method.kappa * (losses - losses.min(1, keepdims=True)))
    mixed = (w / w.sum(1, keepdims=True)) @ lines
    return tuple(np.array([((X @ b - y) ** 2).mean() for (X, y), b in zip(test, own, strict=True)])
                 for own in (lines, mixed))  # fmt: skip


def _design(part: Data) -> tuple[np.ndarray, np.ndarray]:
    x = part.x.double().numpy()
    return np.hstack([x, np.ones_like(x)]), part.y.double().numpy().reshape(-1)


def row(way: str, ratios: list[np.ndarray]) -> Result:
    """What the ratios of all seeds [8] each say."""
    found = np.concatenate(ratios)
    print(way, np.round(found, 4).tolist(), flush=True)
    return {
        "way": way,
        "clients": len(found),
        "mean ratio": float(found.mean()),
        "least": float(found.min()),
        "largest": float(found.max()),
        "above 1.001": int((found > 1.001).sum()),
        "above 1.01": int((found > 1.01).sum()),
        "largest by seed": " ".join(f"{r.max():.4f}" for r in ratios),
    }


def main() -> None:
    """Measure, write federico_sine.json and the table."""
    torch.set_num_threads(1)
    alone = [errors("local", seed, []) for seed in SEEDS]
    rows = [
        row(way, [errors("federico", seed, changed) / alone[seed] for seed in SEEDS])
        for way, changed in WAYS.items()
    ]
    restless = [errors("federico", s, CONSTANT) / errors("local", s, CONSTANT) for s in SEEDS]
    rows.append(row("as configured, constant rate", restless))
    rows.append(row("least squares", [mixed / own for own, mixed in map(least_squares, SEEDS)]))
    keep(rows, "python benchmarks/federico_sine.py", FILE)


if __name__ == "__main__":
    main()
