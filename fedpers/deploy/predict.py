"""Predictions on a device, with its client's own model, for new rows of data."""

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpers.config.registry import method
from fedpers.config.run_config import from_mapping
from fedpers.core.errors import DataError
from fedpers.core.pipeline import Pipeline
from fedpers.core.plan import Plan
from fedpers.core.rng import Stream
from fedpers.datasets.local_files import from_columns, read_columns
from fedpers.deploy.local_data import Expected, checked, local
from fedpers.deploy.own_model import OwnModel
from fedpers.deploy.private_state import PrivateState, Recall
from fedpers.deploy.resident import model_of, one_device
from fedpers.engines.population import Population
from fedpers.flower.client import PersonalizedClient

NOWHERE = "\0"  # a column that no table has


def read_rows(
    path: Path, columns: Sequence[str], target: str | None, expected: Expected
) -> tuple[np.ndarray, np.ndarray | None]:
    """(x [n, ...], y [n] or None) of new rows.

    Args:
        path: .csv, .parquet, or .npz with x and maybe y.
        columns: names of x's columns, in the order of training; empty if they had none.
        target: the column of y, which may be missing.
        expected: shape and classes of the model.

    Raises:
        DataError: other columns, another shape, other classes, or a file that cannot be read.
    """
    try:
        x, y = _npz(path) if path.suffix == ".npz" else _table(path, columns, target)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    x, _ = checked(x, np.zeros(len(x)) if y is None else y, expected, str(path))
    return x, y


def _npz(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    if "x" not in arrays:
        raise DataError(f"{path}: has {', '.join(arrays) or 'no arrays'}; expected x, and y if it is known")
    return arrays["x"], arrays.get("y")


def _table(path: Path, columns: Sequence[str], target: str | None) -> tuple[np.ndarray, np.ndarray | None]:
    table = read_columns(path)
    y = table.pop(target or NOWHERE, None)
    if columns and set(columns) != set(table):
        missing = [c for c in columns if c not in table]
        odd = [c for c in table if c not in columns]
        both = (f"{word} {', '.join(names)}" for word, names in (("no", missing), ("unknown:", odd)) if names)
        raise DataError(f"{path}: other columns than those of training ({'; '.join(both)})")
    rows = {c: table[c] for c in columns or table}
    count = len(next(iter(rows.values()), ()))
    return from_columns(rows | {NOWHERE: np.zeros(count)}, NOWHERE, None, str(path)).x, y


class Predictor:
    """A device's client with the model that it was last evaluated with."""

    def __init__(self, own: OwnModel) -> None:
        """Read the model.

        Raises:
            CheckpointError: a file is damaged.
            StateLost: the private state that belongs to it is gone.
        """
        self.own, self.cfg = own, from_mapping(json.loads(own.about["config"]))
        row = method(self.cfg.method_name)
        row.strategy_class()  # its records
        self.client: PersonalizedClient = row.client_class()(self.cfg.method, model_of(self.cfg))
        data = self.cfg.data
        self.expected = Expected(tuple(data.input_shape), data.task, data.num_classes)
        self.columns: tuple[str, ...] = tuple(own.about["columns"])
        self.pipeline = Pipeline.of(json.loads(own.about.get("pipeline") or "{}"))
        self.target: str | None = own.about["target"]

    def __call__(self, x: np.ndarray) -> Tensor:
        """Outputs [n, K] for x [n, ...], of the model that the client was last evaluated with."""
        inputs = self.pipeline.inputs(x, getattr(torch, self.cfg.dtype))
        with torch.no_grad():
            shared, state = self._ready()
            params = self.client.personal(shared, state)
            if params is None:
                return self.client.predict(shared, state, inputs)
            return self.client.model(params, inputs)

    def _ready(self) -> tuple[Any, Any]:
        """(shared, state) as the evaluation had them, after what the method does with the training data."""
        cfg, about, kept = self.cfg, self.own.about, self.own.content()
        k, when, since = int(kept["k"]), tuple(kept["when"]), kept["since"]
        dtype = getattr(torch, cfg.dtype)
        data = local(about["data"], self.target, cfg.data, cfg.seed, dtype, self.pipeline).data
        folder = self.own.folder
        store = PrivateState(folder.parent.parent, folder.parent.name, folder.name)
        store.recall = Recall(tuple(since) if since else None, None)
        plan = Plan(seed=cfg.seed, dtype=cfg.dtype)
        state = Population(self.client, one_device(data, cfg), store, plan).state(k, when)
        return self.client.ready(kept["shared"], state, data.train, Stream(cfg.seed, when[0], k, when[1]))
