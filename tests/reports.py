"""Run directories as the recorder leaves them, for tests of reports."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from fedpers.results import files


def make(
    folder: Path,
    method: str = "fedavg",
    seed: int = 0,
    accuracy: Sequence[float] = (0.5, 0.7),
    status: str = "finished",
    best: float | None = 0.6,
    **extra: Any,
) -> Path:
    """A run of a method with a test accuracy a round; `best` is what validation chose."""
    (folder / ".hydra").mkdir(parents=True)
    config = {
        "method": {"name": method, "lr": extra.pop("lr", 0.1)},
        "data": {"name": "digits"},
        "model": {"name": "mlp"},
        "rounds": len(accuracy),
        "seed": seed,
        **extra,
    }
    (folder / ".hydra" / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump([f"method={method}", f"seed={seed}"]))
    rows = [row for t, a in enumerate(accuracy, 1) for row in _round(t, a)]
    columns = list(dict.fromkeys(k for row in rows for k in row)) or ["round", "split"]
    files.replace_csv(folder / "metrics.csv", rows, columns)
    if status:
        (folder / "summary.json").write_text(json.dumps(_summary(status, best, len(accuracy))))
    return folder


def _round(t: int, accuracy: float) -> list[dict[str, Any]]:
    train = {
        "round": t,
        "split": "train",
        "seconds": 0.5,
        "bytes_up": 1e6,
        "bytes_down": 2e6,
        "gradient_evals": 8,
    }
    test = {"accuracy": accuracy, "accuracy_mean": accuracy, "worst_decile": accuracy / 2, "loss": 1.0}
    return [train, {"round": t, "split": "test", **test}]


def _summary(status: str, best: float | None, rounds: int) -> dict[str, Any]:
    return {
        "status": status,
        "best": {} if best is None else {"accuracy": best, "round": 1},
        "rounds_done": rounds,
        "round_seconds": 1.0,
        "bytes": {"up": 2e6, "down": 4e6},
        "gradient_evals": 8,
        "git_commit": "0123456789abcdef",
        "versions": {"fedpers": "0.1.0"},
    }
