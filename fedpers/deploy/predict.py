"""Predictions on a device, with its client's own model, for new rows of data."""

import json
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpers.config.registry import method
from fedpers.config.run_config import from_mapping
from fedpers.core.pipeline import Pipeline
from fedpers.core.plan import Plan
from fedpers.core.rng import Stream
from fedpers.deploy.local_data import Expected, local
from fedpers.deploy.own_model import OwnModel
from fedpers.deploy.private_state import PrivateState, Recall
from fedpers.deploy.resident import model_of, one_device
from fedpers.engines.population import Population
from fedpers.flower.client import PersonalizedClient


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
        self.pipeline = Pipeline.of(json.loads(own.about.get("pipeline") or "{}"))
        names = data.class_names or self.pipeline.classes
        shape = tuple(data.input_shape)
        kind = own.about.get("kind", "")  # older versions kept none
        self.expected = Expected(shape, data.task, data.num_classes, names, kind, tuple(data.image_size))
        self.columns: tuple[str, ...] = tuple(own.about["columns"])
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
