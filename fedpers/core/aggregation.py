"""Robust means, which a few wrong items cannot move far, for servers that average."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedpers.core.bounds import above, bounds
from fedpers.core.errors import FedpersError
from fedpers.core.params import Params, add, scale, sq_norm, sub, weighted_mean


@dataclass(frozen=True)
class AggregationConfig:
    """Which mean the server takes."""

    name: Literal["mean", "median", "trimmed", "norm_bound"] = "mean"
    trim: float = 0.1  # trimmed: share of the values that is cut off at either end
    max_norm: float = 1.0  # norm_bound: largest L2 norm of a client's change

    def check(self) -> list[str]:
        """The problems with these values, one line each."""
        high = [] if self.trim < 0.5 else [f"trim={self.trim}: must be below 0.5"]
        return bounds(self, trim=(0, None)) + high + above(self, max_norm=0)


USED_BY = {"trim": "trimmed", "max_norm": "norm_bound"}  # key: the only choice that reads it


def aggregate(
    items: Sequence[Params], weights: Sequence[float], start: Params | None, how: AggregationConfig
) -> Params:
    """The mean of the items, of the kind that `how` names.

    median and trimmed (Yin, Chen, Ramchandran, Bartlett, ICML 2018, https://arxiv.org/abs/1803.01498) go
    by coordinate and take no weights, which clients could choose; norm_bound (Sun, Kairouz, Suresh,
    McMahan, 2019, https://arxiv.org/abs/1911.07963) shortens each item's change since `start` and then takes
    the weighted mean.

    Args:
        items: what clients sent.
        weights: of the mean.
        start: what they started from; None if the items are changes themselves.
        how: the kind, and its parameter.

    Raises:
        FedpersError: there are no items, or `trim` would cut off all of them.
    """
    if how.name == "mean":
        return weighted_mean(items, weights)
    if not items:
        raise FedpersError("nothing to aggregate: no client replied")
    if how.name == "norm_bound":
        return weighted_mean([_bounded(item, start, how.max_norm) for item in items], weights)
    cut = (len(items) - 1) // 2 if how.name == "median" else int(how.trim * len(items))
    return {name: _trimmed(torch.stack([item[name] for item in items]), cut) for name in items[0]}


def _trimmed(rows: Tensor, cut: int) -> Tensor:
    """[...] mean over rows [M, ...] of what is left without the `cut` smallest and largest values."""
    kept = rows.sort(0).values[cut : len(rows) - cut]
    return kept.double().mean(0).to(rows.dtype)


def _bounded(item: Params, start: Params | None, largest: float) -> Params:
    change = item if start is None else sub(item, start)
    size = float(sq_norm({k: v.double() for k, v in change.items()})) ** 0.5
    if size <= largest:
        return item
    short = scale(change, largest / size)
    return short if start is None else add(start, short)
