"""`fedpers predict`: a table of predictions for new rows, by a device's own model or an exported one."""

import csv
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedpers.app.exported import ExportedModel, load_exported
from fedpers.core.errors import ConfigError, DataError
from fedpers.core.tasks import PLAIN
from fedpers.deploy.device import default_state
from fedpers.deploy.local_data import Expected
from fedpers.deploy.own_model import find
from fedpers.deploy.predict import Predictor
from fedpers.deploy.rows import read_rows

AT_ONCE = 1024  # rows


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
        raise ConfigError(
            "--model names an exported file, which is complete; leave out --state, --client and --run"
        )
    if model is not None:
        outputs, y, expected = _exported(load_exported(model), rows, target)
    else:
        own = Predictor(find(state or default_state(), client, run))
        expected = own.expected
        x, y = read_rows(rows, own.columns, target or own.target, expected)
        outputs = own(x)
    if not bool(outputs.isfinite().all()):
        raise DataError("the model answers with NaN or infinite numbers: its training had diverged")
    _write(_table(outputs, expected), out)
    if y is not None:
        print(_score(outputs, y, expected), file=sys.stderr)


def _exported(
    model: ExportedModel, rows: Path, target: str | None
) -> tuple[Tensor, np.ndarray | None, Expected]:
    """(outputs [n, K], the known answers, what it takes) of an exported model."""
    about, expected = model.about, model.expected
    if about["kind"] not in ("model", "mixture"):
        text = "export a whole one: fedpers export RUN --client K"
        raise ConfigError(f"{about['name']} holds only the {about['kind']} of a model; {text}")
    unread = [about["client_column"]] if about["client_column"] else []
    if expected.task not in PLAIN:
        raise ConfigError(
            f"{about['name']} is for the task {expected.task}, whose predictions are no table; use it from "
            "Python: load_exported(FOLDER)"
        )
    x, y = read_rows(rows, model.pipeline.columns, target or model.pipeline.target, expected, unread)
    try:
        return torch.cat([model(part) for part in model.inputs(x).split(AT_ONCE)]), y, expected
    except IndexError as error:
        text = f"has tokens up to {x.max():g}, above those of the model's vocabulary"
        raise DataError(f"{rows}: {text}") from error


def _table(outputs: Tensor, expected: Expected) -> dict[str, np.ndarray]:
    """Columns: the prediction, and each class's probability."""
    outputs = outputs.double().reshape(len(outputs), -1)
    if expected.task == "regression":
        names = (
            ["prediction"] if outputs.shape[1] == 1 else [f"prediction_{j}" for j in range(outputs.shape[1])]
        )
        return dict(zip(names, outputs.T.numpy(), strict=True))
    guess, called = _guess(outputs, expected), _names(outputs, expected)
    prediction = {"prediction": np.array(called)[guess]}
    if expected.task == "binary":
        return prediction | {_share(called[1]): torch.sigmoid(outputs[:, 0]).numpy()}
    share = torch.softmax(outputs, 1).numpy()
    return prediction | {_share(name): share[:, c] for c, name in enumerate(called)}


def _guess(outputs: Tensor, expected: Expected) -> np.ndarray:
    """[n] numbers of the predicted classes, by the rule of `Model.correct`."""
    return (outputs[:, 0] > 0).long().numpy() if expected.task == "binary" else outputs.argmax(1).numpy()


def _names(outputs: Tensor, expected: Expected) -> list[str]:
    """The name of each class; an output without a class in the data gets its number."""
    count = 2 if expected.task == "binary" else outputs.shape[1]
    more = [f"no class {i}" for i in range(len(expected.class_names), count)]
    return [*expected.class_names, *more] if expected.class_names else [str(i) for i in range(count)]


def _share(name: str) -> str:
    return f"p{name}" if name.isdecimal() else f"p_{name}"


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
    if expected.task == "regression":
        error = outputs.double().reshape(len(y), -1).numpy() - y.reshape(len(y), -1)
        return f"mean squared error {float(np.mean(error**2)):.6g} of {len(y)} rows"
    right = _guess(outputs.reshape(len(outputs), -1), expected) == y
    return f"{float(np.mean(right)):.2%} of {len(y)} rows are right"
