"""Several models of one shape on the server: how they start, and how good each is where."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedpers.core.data import Data
from fedpers.core.params import Params, combine, weighted_mean
from fedpers.core.pytree import flatten, rebuild
from fedpers.core.vmap import on_stacks
from fedpers.families.starts import Start, refuse_equal, started
from fedpers.learning.kernels.scoring import mean_losses_of, sample_losses_of
from fedpers.learning.model import Model


def new_centers(
    model: Model, count: int, like: Params, rng: np.random.Generator, start: Start = "seeds"
) -> tuple[Params, ...]:
    """`count` models that start apart, each from a seed of its own; dtype and device of `like`.

    Raises:
        ConfigError: all are equal; they would never part, every sample is nearest to the first of them.
    """
    seeds = rng.integers(2**31 - 1, size=count)
    centers = tuple([started(model, like, int(seed), start) for seed in seeds])
    refuse_equal(centers, f"{count} centers")
    return centers


def center_losses(model: Model, centers: Sequence[Params], data: Data) -> Tensor:
    """The loss of each sample under each center, [S, n]; mask what is padding."""
    return sample_losses_of(model, centers, data)


def nearest_center(model: Model, centers: Sequence[Params], data: Data) -> Tensor:
    """The number of the center of least mean loss, a scalar int64; ties go to the first."""
    return mean_losses_of(model, centers, data).argmin()


def pick(centers: Sequence[Params], number: Tensor) -> Params:
    """One of the centers, by a number that is a scalar int64; under vmap each client's own."""
    leaves, form = flatten(list(centers))

    def all_clients(number: Tensor, *leaves: Tensor) -> list[Tensor]:
        stacks = rebuild(form, leaves)
        return [_rows([stack[k] for stack in stacks], number) for k in stacks[0]]

    return dict(zip(centers[0], on_stacks(all_clients, number, *leaves), strict=True))


def _rows(layer: Sequence[Tensor], number: Tensor) -> Tensor:
    """[C, ...] row c of stack number[c]; what all clients share is not stacked for each."""
    if not any(stack.stride(0) for stack in layer):
        return torch.stack([stack[0] for stack in layer])[number]
    return torch.stack(list(layer))[number, torch.arange(len(number), device=number.device)]


def nearest_shares(model: Model, centers: Sequence[Params], data: Data) -> Tensor:
    """The share of samples whose loss is least under each center, [S]; ties go to the first."""
    nearest = one_hot(center_losses(model, centers, data).argmin(0), len(centers))
    return (nearest * data.mask[:, None]).sum(0) / data.num


def own_blend(model: Model, centers: Sequence[Params], data: Data, *, mix: bool) -> Params:
    """The center that is nearest to most samples; with `mix` their mean by the shares that are nearest."""
    shares = nearest_shares(model, centers, data)
    return combine(centers, shares) if mix else pick(centers, shares.argmax())


def new_mean(center: Params, models: Mapping[int, Params], weights: Mapping[int, float]) -> Params:
    """The weighted mean of the models of those clients in `weights` that replied, else `center`."""
    there = [k for k in weights if k in models]
    if not there:
        return center
    return weighted_mean([models[k] for k in there], [weights[k] for k in there])
