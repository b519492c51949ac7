"""Means of a client's features, class by class."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedpers.core.data import Data
from fedpers.core.errors import ConfigError
from fedpers.core.params import Params
from fedpers.core.sums import class_sums
from fedpers.core.vmap import together
from fedpers.learning.model import Model


def check_classes(model: Model, why: str, tasks: Sequence[str] = ("classification", "binary")) -> None:
    """Refuse a task without the classes that a method needs.

    Args:
        why: what the method does with classes: "fedproto shares a prototype of each class".

    Raises:
        ConfigError: the task is none of `tasks`.
    """
    if model.kind.name not in tasks:
        text = f"method {why}, and the task is {model.task}"
        raise ConfigError(f"{text}; take data with classes, or another method")


def check_features(model: Model, why: str) -> None:
    """Refuse a task of tokens, whose features are not [n, M].

    Args:
        why: what the method does with features: "moon compares features of samples".

    Raises:
        ConfigError: the model has features for each token.
    """
    if model.kind.targets == "tokens":
        text = f"method {why}, and the task {model.kind.name} has features of each token"
        raise ConfigError(f"{text}; take one row of outputs a sample, or another method")


def distances(a: Tensor, b: Tensor) -> Tensor:
    """[n, m] of rows [n, M] and [m, M], difference by difference.

    From 26 rows on torch takes them from squares, of which rounding leaves little where rows are far from 0.
    """
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")


def class_means(model: Model, w: Params, data: Data, K: int) -> tuple[Tensor, Tensor]:
    """([K, M] mean features of a client's samples of each class, 0 where it has none; [K] how many it has).

    On a CPU each client of a stack reads its own samples: once read, they are not worth a stack.
    """
    w = {k: v for k, v in w.items() if not model.is_head(k)}
    if data.like.is_cpu:
        sums, n = together(lambda *given: _sums_each(model, *given), w, data.apart, K)
    else:
        sums, n = _sums(model.body(w, data.x), data, K)
    return sums / n.clamp(min=1)[:, None], n


def _sums_each(
    model: Model, models: Sequence[Params], datas: Sequence[Data], Ks: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Stacks [C, K, M] and [C, K] of C clients, by a kernel where there is one, else by torch."""
    z = [model.body(w, data.x) for w, data in zip(models, datas, strict=True)]
    found = class_sums(z, [data.y for data in datas], Ks[0])
    if found is not None:
        return found
    each = [_sums(features, data, K) for features, data, K in zip(z, datas, Ks, strict=True)]
    sums, n = map(torch.stack, zip(*each, strict=True))
    return sums, n


def _sums(z: Tensor, data: Data, K: int) -> tuple[Tensor, Tensor]:
    of_class = data.of_class(K)
    return of_class.T @ z, of_class.sum(0)
