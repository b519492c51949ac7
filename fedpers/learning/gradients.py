"""Gradients: by autograd for one client and under vmap for a stack, by algebra where it is known."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Protocol, TypeGuard

import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor

from fedpers.core import derivatives
from fedpers.core.data import Data
from fedpers.core.params import Params
from fedpers.core.rng import Stream
from fedpers.core.scope import holding
from fedpers.core.witness import TORCH, took
from fedpers.learning.kernels.dispatch import gradient_of, kernels_allowed, of_model_alone
from fedpers.learning.kernels.graphs import gradient_recorded
from fedpers.learning.kernels.plan import HEADS, layers_of
from fedpers.learning.kernels.pooled import differentiated_once
from fedpers.learning.losses import Loss, states
from fedpers.learning.model import HEAD, Model
from fedpers.learning.optimizers import LocalConfig, OptimizerState
from fedpers.learning.pieces import layout, pieces, piecewise, slopes

_stacked: ContextVar[bool] = ContextVar("stacked", default=False)


class OwnGradient(Protocol):
    """A loss with a method that computes its gradient."""

    def gradient(self, params: Params, data: Data) -> Params:
        """The gradient in `params`, of the same names and shapes."""


class OwnTraining(Protocol):
    """A loss with its own, faster, way of local training."""

    def minimise(
        self, params: Params, opt: OptimizerState, data: Data, rng: Stream, cfg: LocalConfig, lr: Any
    ) -> tuple[Params, OptimizerState] | None:
        """The parameters and the optimiser's state after local training; None: not here."""


def knows_gradient(loss: Any) -> TypeGuard[OwnGradient]:
    """Whether `grad` calls the loss's own `gradient`."""
    return states(loss, "gradient")


def knows_training(loss: Any) -> TypeGuard[OwnTraining]:
    """Whether `minimise` calls the loss's own `minimise`."""
    return states(loss, "minimise")


def stacked() -> AbstractContextManager[None]:
    """While this is open, `grad` is one that vmap can take: the caller runs a stack of clients under it."""
    return holding(_stacked, True)


def in_stack() -> bool:
    """Whether `stacked` is open."""
    return _stacked.get()


def grad(f: Callable[..., Tensor], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """The gradient of a scalar function in the given arguments (tensors, dicts or records).

    Within a function that is differentiated it has its own derivatives, as MAML's meta-gradient needs them.

    >>> grad(lambda w, x: (w * x).sum())(torch.zeros(2), torch.tensor([1.0, 2.0]))
    tensor([1., 2.])

    Returns:
        A function of the same arguments; it gives a tree like the argument, or a tuple of trees.
    """
    differentiated = derivatives.grad(f, argnums) if in_stack() else _grad(f, argnums)

    def by_autograd(*args: Any) -> Any:
        took(TORCH)
        return differentiated(*args)

    if argnums != 0:
        return by_autograd

    def gradient(*args: Any) -> Any:
        found = _without_autograd(f, *args) if kernels_allowed() else None
        if found is None and len(args) == 2:
            found = gradient_recorded(f, *args)
        return by_autograd(*args) if found is None else found

    return gradient


def _without_autograd(f: Loss, *args: Any) -> Any:
    """The gradient in the first argument by the loss itself, by a kernel or piece by piece; else None."""
    if knows_gradient(f):
        return f.gradient(*args)
    found = gradient_of(f, *args)
    return _of_images(f, *args) if found is None else found


def _of_images(f: Loss, *args: Any) -> Params | None:
    """The gradient of one client's mean loss over images, many of them piece by piece; else None."""
    if in_stack() or len(args) != 2 or not isinstance(args[1], Data) or not piecewise(f, args[1]):
        return None
    took(TORCH)
    w, data = args
    own = {k: layout(v).requires_grad_() for k, v in w.items()}
    return {k: g.contiguous() for k, g in zip(own, slopes(f, own, pieces(f, data)), strict=True)}


def _grad(f: Callable[..., Tensor], argnums: int | tuple[int, ...]) -> Callable[..., Any]:
    """`grad` by autograd, for one client alone."""
    wanted = (argnums,) if isinstance(argnums, int) else argnums

    def gradient(*args: Any) -> Any:
        if torch.is_grad_enabled():  # this gradient may be differentiated in turn
            with differentiated_once(False):
                return derivatives.grad(f, argnums)(*args)
        full, leaves, forms = list(args), [], []
        for i in wanted:
            flat, form = pytree.tree_flatten(args[i])
            leaves.append([t.detach().requires_grad_() for t in flat])
            forms.append(form)
            full[i] = pytree.tree_unflatten(leaves[-1], form)
        with torch.enable_grad():
            value = f(*full)
        inputs = [t for flat in leaves for t in flat]
        found = iter(torch.autograd.grad(value, inputs, materialize_grads=True))
        trees = [
            pytree.tree_unflatten([next(found) for _ in flat], form)
            for flat, form in zip(leaves, forms, strict=True)
        ]
        return trees[0] if isinstance(argnums, int) else tuple(trees)

    return gradient


WEIGHT, BIAS = HEAD + "weight", HEAD + "bias"


def is_linear(model: Model) -> bool:
    """Whether the model is a head alone, of whose gradient `model_gradient` is the algebra."""
    return layers_of(model) == HEADS and not model.network.softmax_head and of_model_alone(model)


def model_gradient(model: Model, params: Params, data: Data) -> Params:
    """∇ model.loss(params, data), of the names and shapes of `params`; by algebra for linear models.

    Of these a whole stack may be given, with a dimension of clients in front of every tensor.
    """
    if not is_linear(model):
        return grad(model.loss)(params, data)
    return head_gradient(model, params, Data(data.x.flatten(params[WEIGHT].dim() - 1), data.y, data.mask))


def head_gradient(model: Model, params: Params, data: Data) -> Params:
    """∇ model.features_loss of a head on data whose inputs are features; of a whole stack, too.

    By algebra, unless outputs are squashed or the loss is a subclass's own.
    """
    if model.network.softmax_head or not of_model_alone(model):
        return grad(model.features_loss)(params, data)
    x = data.x
    z = x @ params[WEIGHT].mT
    if BIAS in params:
        z = z + params[BIAS].unsqueeze(-2)
    delta = derivative(model, z, data.y) * (data.mask / data.mask.sum(-1, keepdim=True)).unsqueeze(-1)
    weight = delta.mT @ x
    return {WEIGHT: weight, BIAS: delta.sum(-2)} if BIAS in params else {WEIGHT: weight}


def derivative(model: Model, z: Tensor, y: Tensor) -> Tensor:
    """The derivative of each sample's loss in its outputs z [..., n, K], [..., n, K]."""
    if model.task == "classification":
        return torch.softmax(z, -1) - F.one_hot(y, z.shape[-1])
    y = y.reshape(z.shape)
    return torch.sigmoid(z) - y if model.task == "binary" else (z - y) * (2 / z.shape[-1])
