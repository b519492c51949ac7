"""`fedpers predict`: a table of predictions for new rows, by a device's own model or an exported one."""

import csv
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedpers.app.exported import ExportedModel, load_exported
from fedpers.core.errors import ConfigError, DataError
from fedpers.core.tasks import TASKS, Task, task_of
from fedpers.deploy.device import default_state
from fedpers.deploy.local_data import Expected
from fedpers.deploy.own_model import find
from fedpers.deploy.predict import Predictor
from fedpers.deploy.rows import read_rows, read_words

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
        exported = load_exported(model)
        outputs, y, expected = _exported(exported, rows, target)
        task = task_of(exported.about["task"])
    else:
        own = Predictor(find(state or default_state(), client, run))
        expected = own.expected
        x, y = read_rows(rows, own.columns, target or own.target, expected)
        outputs, task = own(x), TASKS[expected.task]
    outputs = outputs.double().flatten(1)
    if not bool(outputs.isfinite().all()):
        raise DataError("the model answers with NaN or infinite numbers: its training had diverged")
    _write(_table(outputs, expected, task), out)
    if y is not None:
        print(_score(outputs, torch.from_numpy(y), task), file=sys.stderr)


def _exported(
    model: ExportedModel, rows: Path, target: str | None
) -> tuple[Tensor, np.ndarray | None, Expected]:
    """(outputs [n, K], the known answers, what it takes) of an exported model."""
    about, expected = model.about, model.expected
    if about["kind"] not in ("model", "mixture"):
        text = "export a whole one: fedpers export RUN --client K"
        raise ConfigError(f"{about['name']} holds only the {about['kind']} of a model; {text}")
    unread = [about["client_column"]] if about["client_column"] else []
    if expected.task == "tokens":
        raise ConfigError(
            f"{about['name']} is for the task {about['task']}, whose predictions are no table; use it from "
            "Python: load_exported(FOLDER)"
        )
    if model.pipeline.words:
        x, y = read_words(rows, model.pipeline.columns[0], model.pipeline.words), None
    else:
        x, y = read_rows(rows, model.pipeline.columns, target or model.pipeline.target, expected, unread)
    try:
        return torch.cat([model(part) for part in model.inputs(x).split(AT_ONCE)]), y, expected
    except IndexError as error:
        text = f"has tokens up to {x.max():g}, above those of the model's vocabulary"
        raise DataError(f"{rows}: {text}") from error


def _table(outputs: Tensor, expected: Expected, task: Task) -> dict[str, np.ndarray]:
    """Columns: the prediction, and each class's probability; of several values or labels one each."""
    p = task.predictions(outputs).numpy()
    if task.targets == "values":
        names = ["prediction"] if p.shape[1] == 1 else [f"prediction_{j}" for j in range(p.shape[1])]
        return dict(zip(names, p.T, strict=True))
    if task.targets == "labels":
        labels = {f"prediction_{j}": (column > 0).astype(int) for j, column in enumerate(outputs.T.numpy())}
        return labels | {f"p{j}": column for j, column in enumerate(p.T)}
    if expected.task == "ranking":
        order = np.argsort(-outputs[:, 0].numpy(), kind="stable")
        return {"rank": np.argsort(order) + 1, "p": p[:, 1]}
    called = _names(p.shape[1], expected)
    prediction = {"prediction": np.array(called)[_guess(outputs, task)]}
    shown = [] if task.outputs == "values" else [1] if task.one_output else range(len(called))
    return prediction | {_share(called[c]): p[:, c] for c in shown}


def _guess(outputs: Tensor, task: Task) -> np.ndarray:
    """[n] numbers of the predicted classes, by the rule of `Model.correct`."""
    return (outputs[:, 0] > 0).long().numpy() if task.one_output else outputs.argmax(1).numpy()


def _names(count: int, expected: Expected) -> list[str]:
    """The name of each class; an output without a class in the data gets its number."""
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


def _score(outputs: Tensor, y: Tensor, task: Task) -> str:
    if task.targets == "values":
        error = outputs - y.reshape(outputs.shape)
        return f"mean squared error {float(error.square().mean()):.6g} of {len(y)} rows"
    what = f"the labels of {len(y)} rows" if task.targets == "labels" else f"{len(y)} rows"
    return f"{float(task.correct(outputs, y).mean()):.2%} of {what} are right"
