"""How curved a client's loss is: μ', L' and, for one sample's loss, script L'."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedpers.core.data import Data
from fedpers.core.params import Params, scale, sq_norm, sub
from fedpers.core.pytree import record
from fedpers.learning.gradients import grad, is_linear
from fedpers.learning.losses import second_derivative
from fedpers.learning.model import Model

Loss = Callable[[Params, Data], Tensor]


@record("unified.Curvature")
class Curvature:
    """Strong convexity and smoothness of a loss, 0-dimensional tensors."""

    mu: Tensor
    L: Tensor
    cL: Tensor


def curvature(model: Model, loss: Loss, params: Params, data: Data, l2: float = 0.0) -> Curvature:
    """Exact for linear regression, bounds for logistic regression, estimates at `params` otherwise.

    A logistic loss has no strong convexity but its ridge `l2`, nor has any other model here.
    """
    if is_linear(model):
        return _linear(model, data, l2)
    one = data.mask * (torch.arange(len(data.mask), device=data.mask.device) == 0).to(data.mask)
    of_one = _steepest(loss, params, Data(data.x, data.y, one))
    L = _steepest(loss, params, data)
    return Curvature(torch.full_like(L, l2), L, torch.maximum(L, of_one))


def _linear(model: Model, data: Data, l2: float) -> Curvature:
    x = data.x.flatten(1)
    if model.bias:
        x = torch.cat([x, torch.ones_like(x[:, :1])], dim=1)
    x = x * data.mask[:, None]
    second = second_derivative(model.task, model.num_outputs)
    wide = x.shape[0] < x.shape[1]
    gram = (x @ x.T if wide else x.T @ x) / data.num
    known = gram.isfinite().all()  # else eigvalsh fails for all clients of a stack
    eigenvalues = torch.where(known, torch.linalg.eigvalsh(torch.where(known, gram, 0.0)), torch.nan)
    lowest = eigenvalues[0] if model.task == "regression" and not wide else eigenvalues[0] * 0
    largest = (x * x).sum(1).max()
    return Curvature(second * lowest.clamp(min=0) + l2, second * eigenvalues[-1] + l2, second * largest + l2)


def _steepest(loss: Loss, params: Params, data: Data, steps: int = 10, h: float = 1e-2) -> Tensor:
    """The Hessian's largest eigenvalue (modulus), by power iteration on gradients' differences."""
    gradient = grad(loss)
    here = gradient(params, data)
    direction, size = here, sq_norm(here).sqrt()
    for _ in range(steps):
        unit = scale(direction, 1 / (size + 1e-12))
        there = gradient({k: v + h * unit[k] for k, v in params.items()}, data)
        direction = scale(sub(there, here), 1 / h)
        size = sq_norm(direction).sqrt()
    return size
