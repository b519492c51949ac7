"""`fedpers predict`: a table of predictions for new rows, by a device's own model or an exported one."""

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpers.app.exported import load_exported
from fedpers.core.errors import ConfigError
from fedpers.deploy.device import default_state
from fedpers.deploy.local_data import Expected
from fedpers.deploy.own_model import find
from fedpers.deploy.predict import Predictor, read_rows


def predict(
    rows: Path,
    state: Path | None,
    client: str | None,
    run: str | None,
    model: Path | None,
    target: str | None,
    out: Path | None,
) -> None:
    """Write the predictions as .csv; where the answers are known, say how many are right.

    Raises:
        ConfigError: there is no model, or two are named.
        DataError: the rows do not fit the model.
        CheckpointError: a file of the model is damaged.
    """
    if model is not None and (state, client, run) != (None, None, None):
        raise ConfigError("--model is a model by itself; leave out --state, --client and --run")
    columns: tuple[str, ...] = ()
    if model is not None:
        source: Any = load_exported(model)
        about = source.about
        expected = Expected(tuple(about["input_shape"]), about["task"], about["classes"])
    else:
        source = Predictor(find(state or default_state(), client, run))
        expected, columns, target = source.expected, source.columns, target or source.target
    x, y = read_rows(rows, columns, target, expected)
    inputs = torch.from_numpy(np.array(x)).float() if model is not None else x
    outputs = source(inputs)
    _write(_table(outputs, expected), out)
    if y is not None:
        print(_score(outputs, y, expected), file=sys.stderr)


def _table(outputs: Tensor, expected: Expected) -> dict[str, np.ndarray]:
    """Columns: the prediction, and each class's probability."""
    outputs = outputs.double().reshape(len(outputs), -1)
    if expected.task == "regression":
        names = (
            ["prediction"] if outputs.shape[1] == 1 else [f"prediction_{j}" for j in range(outputs.shape[1])]
        )
        return dict(zip(names, outputs.T.numpy(), strict=True))
    if expected.task == "binary":
        yes = torch.sigmoid(outputs[:, 0]).numpy()
        return {"prediction": (yes > 0.5).astype(int), "p1": yes}
    share = torch.softmax(outputs, 1).numpy()
    return {"prediction": share.argmax(1)} | {f"p{c}": share[:, c] for c in range(share.shape[1])}


def _write(table: dict[str, np.ndarray], out: Path | None) -> None:
    file = sys.stdout if out is None else out.open("w", newline="", encoding="utf-8")
    try:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(table)
        writer.writerows(zip(*(column.tolist() for column in table.values()), strict=True))
    finally:
        if out is not None:
            file.close()


def _score(outputs: Tensor, y: np.ndarray, expected: Expected) -> str:
    table = _table(outputs, expected)
    if expected.task == "regression":
        return (
            f"mean squared error {float(np.mean((next(iter(table.values())) - y) ** 2)):.6g} of {len(y)} rows"
        )
    return f"{float(np.mean(table['prediction'] == y)):.2%} of {len(y)} rows are right"
