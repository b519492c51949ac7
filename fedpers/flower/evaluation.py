"""The server's own models on its hold-out samples of each source."""

from collections.abc import Mapping

import numpy as np
import torch

from fedpers.core.data import Data
from fedpers.core.params import Params
from fedpers.learning.model import Model


def measure_centers(
    model: Model, centers: Mapping[str, Params], holdout: Mapping[str, Data]
) -> dict[str, np.ndarray]:
    """Each center on test samples of each source: center_metric and center_loss, [S, sources].

    The metric is the accuracy, or the mean squared error for regression. Empty without either.
    """
    if not centers or not holdout:
        return {}
    with torch.no_grad():
        pairs = [[_measure(model, c, data) for data in holdout.values()] for c in centers.values()]
    table = np.array(pairs)
    metric = table[..., 0] if model.kind.targets == "values" else table[..., 1]
    return {"center_metric": metric, "center_loss": table[..., 0]}


def _measure(model: Model, params: Params, data: Data, size: int = 1000) -> tuple[float, float]:
    """(mean loss, accuracy), in pieces: a hold-out set has thousands of samples."""
    loss = correct = 0.0
    for x, y in zip(data.x.split(size), data.y.split(size), strict=True):
        like = next(iter(params.values()))
        outputs, y = model(params, x.to(like)), y.to(like.device)
        loss += float(model.sample_losses(outputs, y).sum())
        correct += float(model.correct(outputs, y).sum())
    return loss / len(data), correct / len(data)
