"""Several models of one shape on the server: how they start, and how good each is where."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedpers.data import Data
from fedpers.models import Model
from fedpers.params import Params, weighted_mean


def new_centers(
    model: Model, count: int, like: Params, rng: np.random.Generator
) -> tuple[Params, ...]:
    """`count` independent initialisations, each from a seed of its own; dtype and device of `like`.

    Equal centers would never part: every sample is then nearest to the first of them.
    """
    seeds = rng.integers(2**31 - 1, size=count)
    fresh = (model.init(int(seed)) for seed in seeds)
    return tuple({k: v.to(like[k]) for k, v in center.items()} for center in fresh)


def center_losses(model: Model, centers: Sequence[Params], data: Data) -> Tensor:
    """The loss of each sample under each center, [S, n]; mask what is padding."""
    return torch.stack([model.sample_losses(model(c, data.x), data.y) for c in centers])


def nearest_shares(model: Model, centers: Sequence[Params], data: Data) -> Tensor:
    """The share of samples whose loss is least under each center, [S]; ties go to the first."""
    nearest = one_hot(center_losses(model, centers, data).argmin(0), len(centers))
    return (nearest * data.mask[:, None]).sum(0) / data.num


def new_mean(
    center: Params, models: Mapping[int, Params], weights: Mapping[int, float]
) -> Params:
    """The weighted mean of the models of those clients in `weights` that replied, else `center`."""
    there = [k for k in weights if k in models]
    if not there:
        return center
    return weighted_mean([models[k] for k in there], [weights[k] for k in there])


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
    metric = table[..., 0] if model.task == "regression" else table[..., 1]
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
