"""Plain SGD on stacks of dense networks by batched products: what runs where there is no C kernel.

A step is three lines of algebra that update the weights in place, where autograd makes gradients first
and vmap pays for each operation.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from fedpers.core.data import Data
from fedpers.core.params import Params
from fedpers.learning.kernels.plan import Plan
from fedpers.learning.model import HEAD


class Block(Protocol):
    """The clients' data: one client's, or a chunk's."""

    @property
    def parts(self) -> Sequence[Data]:
        """A client each."""

    def gather(self, name: str, index: Tensor) -> Tensor:
        """Rows index [C, ...] of a field, each client's own, [C, ..., *row]."""


def descend(plan: Plan, params: Params, block: Block, index: Tensor, weight: Tensor) -> None:
    """SGD with weight decay, in place on stacks [C, ...]; index, weight are minibatches [C, S, B]."""
    total = weight.sum(-1, keepdim=True)
    rate = (weight * (-plan.lr / total.clamp(min=1e-30))).unsqueeze(-1)  # [C, S, B, 1]
    keep = 1 - plan.lr * plan.decay * (total > 0).to(weight).unsqueeze(-1)  # [C, S, 1, 1]
    for i, r, q in zip(*(t.split(plan.per_pass, 1) for t in (index, rate, keep)), strict=True):
        x = block.gather("x", i).flatten(3)
        target = _target(plan, block.gather("y", i), params[HEAD + "weight"])
        for s in range(i.shape[1]):
            left = q[:, s] if plan.decay else None
            _step(plan, params, x[:, s], target[:, s], r[:, s], left)


def _target(plan: Plan, y: Tensor, like: Tensor) -> Tensor:
    """Targets [C, S, B, K]."""
    if plan.task == "classification":
        return F.one_hot(y, like.shape[1]).to(like.dtype)
    return y.to(like.dtype).reshape(*y.shape[:3], -1)


def _step(plan: Plan, params: Params, x: Tensor, target: Tensor, rate: Tensor, left: Tensor | None) -> None:
    """One step: forwards, then from the head down; weights [C, out, in], inputs [C, B, in].

    `rate` [C, B, 1] is minus the step size times a sample's weight; `left` [C, 1, 1] is what weight
    decay leaves of the weights.
    """
    inputs = [x]
    for name in plan.layers[:-1]:
        inputs.append(_affine(params, name, inputs[-1]).relu_())
    delta = _slope(plan.task, _affine(params, plan.layers[-1], inputs[-1]), target).mul_(rate)
    for name, h in zip(reversed(plan.layers), reversed(inputs), strict=True):
        below = None
        if h is not x:
            below = torch.bmm(delta, params[f"{name}.weight"]).mul_(h > 0)
        weight, bias = params[f"{name}.weight"], params.get(f"{name}.bias")
        if left is not None:
            weight.mul_(left)
        weight.baddbmm_(delta.transpose(1, 2), h)
        if bias is not None:
            if left is not None:
                bias.mul_(left[:, 0])
            bias.add_(delta.sum(1))
        if below is not None:
            delta = below


def _affine(params: Params, name: str, x: Tensor) -> Tensor:
    weight, bias = params[f"{name}.weight"].transpose(1, 2), params.get(f"{name}.bias")
    return torch.bmm(x, weight) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, weight)


def _slope(task: str, z: Tensor, target: Tensor) -> Tensor:
    """The derivative of a sample's loss in its outputs."""
    if task == "classification":
        return torch.softmax(z, -1).sub_(target)
    if task == "binary":
        return torch.sigmoid(z).sub_(target)
    return (z - target).mul_(2 / z.shape[-1])
