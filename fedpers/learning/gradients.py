"""Gradients: by autograd for one client, by torch.func for a stack, by algebra where it is known."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor

from fedpers.core.data import Data
from fedpers.core.params import Params
from fedpers.learning.kernels.dispatch import gradient_of, kernels_allowed
from fedpers.learning.model import HEAD, Model

_stacked: ContextVar[bool] = ContextVar("stacked", default=False)


@contextmanager
def stacked() -> Iterator[None]:
    """While this is open, `grad` is torch.func's: the caller runs a stack of clients under vmap."""
    token = _stacked.set(True)
    try:
        yield
    finally:
        _stacked.reset(token)


def grad(f: Callable[..., Tensor], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """The gradient of a scalar function in the given arguments (tensors, dicts or records)."""
    by_autograd = torch.func.grad(f, argnums=argnums) if _stacked.get() else _grad(f, argnums)
    if argnums != 0:
        return by_autograd

    def gradient(*args: Any) -> Any:
        if not kernels_allowed():
            return by_autograd(*args)
        if own is not None:
            return own(*args)
        found = gradient_of(f, *args)
        return by_autograd(*args) if found is None else found

    own = getattr(f, "gradient", None)  # of a loss that knows it
    return gradient


def _grad(f: Callable[..., Tensor], argnums: int | tuple[int, ...]) -> Callable[..., Any]:
    """By autograd, for one client alone."""
    wanted = (argnums,) if isinstance(argnums, int) else argnums

    def gradient(*args: Any) -> Any:
        leaves = {i: pytree.tree_flatten(args[i]) for i in wanted}
        fresh = {i: [t.detach().requires_grad_() for t in flat] for i, (flat, _) in leaves.items()}
        full = [
            pytree.tree_unflatten(fresh[i], leaves[i][1]) if i in leaves else a for i, a in enumerate(args)
        ]
        with torch.enable_grad():
            value = f(*full)
        inputs = [t for i in wanted for t in fresh[i]]
        flat_grads = iter(torch.autograd.grad(value, inputs, materialize_grads=True))
        trees = [pytree.tree_unflatten([next(flat_grads) for _ in fresh[i]], leaves[i][1]) for i in wanted]
        return trees[0] if isinstance(argnums, int) else tuple(trees)

    return gradient


WEIGHT, BIAS = HEAD + "weight", HEAD + "bias"


def model_gradient(model: Model, params: Params, data: Data) -> Params:
    """∇ model.loss(params, data)."""
    if model.name not in ("linear", "logistic"):
        return grad(model.loss)(params, data)
    x = data.x if data.x.dim() == 2 else data.x.flatten(1)
    z = F.linear(x, params[WEIGHT], params.get(BIAS))
    delta = _derivative(model, z, data.y) * (data.mask / data.num)[:, None]
    weight = delta.T @ x
    return {WEIGHT: weight, BIAS: delta.sum(0)} if BIAS in params else {WEIGHT: weight}


def _derivative(model: Model, z: Tensor, y: Tensor) -> Tensor:
    """Of each sample's loss in its outputs, [n, K]."""
    if model.task == "classification":
        return torch.softmax(z, 1) - F.one_hot(y, z.shape[1])
    y = y.reshape(z.shape)
    return torch.sigmoid(z) - y if model.task == "binary" else (z - y) * (2 / z.shape[1])
