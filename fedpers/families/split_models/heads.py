"""Heads of clients' own: how they start, and how they are trained under a body that stays."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from fedpers.core.data import Data
from fedpers.core.errors import ConfigError
from fedpers.core.params import Params, split
from fedpers.core.rng import Stream
from fedpers.core.seeds import integer_seeds
from fedpers.learning.features import Features
from fedpers.learning.gradients import grad
from fedpers.learning.losses import second_derivative
from fedpers.learning.model import HEAD, Model
from fedpers.learning.optimizers import LocalConfig

# drawn for each client as a model's head starts; uniform in [0, 1); or the initial model's head for all
HeadInit = Literal["default", "uniform01", "common"]

POWERS = 10  # steps of the power method
TOLD = ("before", "after", "L")
ABSENT = -1e4  # the output of a class that a client does not have: its probability is 0, to the last bit


def first_head(
    model: Model, params: Params, data: Data, rng: Stream, how: HeadInit, own_classes: bool = False
) -> Params:
    """A client's first head, the same whenever it is first visited; dtype and device of `params`."""
    return initial_heads(model, params, [data], [rng], how, own_classes)[0]


def initial_heads(
    model: Model,
    params: Params,
    data: Sequence[Data],
    rngs: Sequence[Stream],
    how: HeadInit,
    own_classes: bool = False,
) -> list[Params]:
    """`first_head` of several clients.

    Args:
        data: each client's training samples.
        own_classes: K_i outputs for the K_i classes of these samples (see `cut_to_classes`).
    """
    like = next(iter(params.values()))
    if how == "common":
        heads = [split(params, model.is_head)[0]] * len(rngs)
    else:
        stacks = model.init_heads(integer_seeds(rngs))
        if how == "uniform01":
            drawn = [{k: rng.uniform(*v.shape[1:]) for k, v in stacks.items()} for rng in rngs]
            stacks = {k: torch.stack([head[k] for head in drawn]) for k in stacks}
        rows = zip(*(stack.to(like).unbind(0) for stack in stacks.values()), strict=True)
        heads = [dict(zip(stacks, row, strict=True)) for row in rows]
    return [cut_to_classes(h, d) for h, d in zip(heads, data, strict=True)] if own_classes else heads


def cut_to_classes(head: Params, data: Data) -> Params:
    """The head, with rows of weight 0 and bias `ABSENT` for classes that no sample of `data` is of.

    That is a head of K_i rows, with the outputs of the model: the probability of such a class is exactly
    0, and so are the gradient of its row and its part in the gradient of the features. So the rows stay.
    """
    weight, bias = head[HEAD + "weight"], head[HEAD + "bias"]
    has = data.of_class(len(bias)).sum(0) > 0
    return head | {
        HEAD + "weight": torch.where(has[:, None], weight, 0.0),
        HEAD + "bias": torch.where(has, bias, ABSENT),
    }


def check_heads(model: Model, own_classes: bool) -> None:
    """Refuse heads of K_i rows where there are no classes, or no bias to leave one out by.

    Raises:
        ConfigError: says what to change.
    """
    if not own_classes:
        return
    if model.kind.name != "classification":
        raise ConfigError(
            f"method.own_classes=true: needs classes, and the task is {model.task}; set it to false"
        )
    if not model.bias:
        raise ConfigError(
            "method.own_classes=true: needs a head with a bias, which leaves classes out; set "
            "model.bias=true, or own_classes to false"
        )


def head_curvature(model: Model, data: Data, steps: int = POWERS) -> Tensor:
    """L of a head's loss on features, a scalar: gradient steps of a rate below 2/L do not raise the loss.

    c λ_max(F'F / n), where F [n, M + 1] are the features and a 1 for the bias, and c bounds the second
    derivative of a sample's loss in its outputs (`second_derivative`). λ_max by power iteration, from
    below; features that are not negative, such as a ReLU's, take a few steps. nan where no c is known.
    """
    second = second_derivative(model.task, model.num_outputs)
    if math.isnan(second):
        return data.num * second
    x = torch.cat([data.x, torch.ones_like(data.x[:, :1])], 1) if model.bias else data.x
    x = x * data.mask[:, None]
    v = x.sum(0)
    for _ in range(steps):
        v = x.T @ (x @ v)
        v = v / v.norm().clamp(min=1e-12)
    return second * (x @ v).square().sum() / data.num


def head_steps(features: Features, head: Params, rng: Stream, rate: float, steps: int) -> Params:
    """The head after so many gradient steps on all samples."""
    return features.fit(head, rng, LocalConfig(rate, steps=steps, batch_size=0)) if steps else head


def head_losses(features: Features, before: Params, after: Params) -> Params:
    """Scalars: the losses of two heads on features, and L of that loss."""
    curvature = head_curvature(features.model, features.data)
    return dict(zip(TOLD, (features.loss(before), features.loss(after), curvature), strict=True))


def steps_and_gradient(
    features: Features, head: Params, rng: Stream, rate: float, steps: int, report: bool
) -> tuple[Params, Params, Params]:
    """`head_steps`, the gradient of the whole model where they end, and `head_losses` if `report`, else {}.

    A kernel goes through the body once for the first two.
    """
    model, cfg = features.model, LocalConfig(rate, steps=steps, batch_size=0)
    found = features.fit_then_grad(head, rng, cfg)
    if found is None:
        after = head_steps(features, head, rng, rate, steps)
        found = after, grad(model.loss)(after | features.body, features.samples)
    return *found, head_losses(features, head, found[0]) if report else {}


def fit_head(model: Model, body: Params, head: Params, data: Data, rng: Stream, cfg: LocalConfig) -> Params:
    """The head after local training on the features of `data`, which are computed once."""
    return Features(model, body, data).fit(head, rng, cfg)
