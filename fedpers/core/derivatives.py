"""Gradients inside vmap, without torch's compiler."""

from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch._functorch.eager_transforms import (
    _create_differentiable,
    _undo_create_differentiable,
    _wrap_all_tensors,
    grad_increment_nesting,
)
from torch._functorch.vmap import doesnt_support_saved_tensors_hooks


def grad(f: Callable[..., Tensor], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """`torch.func.grad`: the gradient of a scalar function in the given arguments, under vmap and nested too.

    The same steps with the same bits. At its first call torch's own imports torch's compiler (torch._dynamo)
    to switch it off, which takes as long as `import torch` itself, and 70 MB.
    """
    wanted = (argnums,) if isinstance(argnums, int) else argnums

    @doesnt_support_saved_tensors_hooks
    def gradient(*args: Any) -> Any:
        with grad_increment_nesting() as level, torch.enable_grad():
            inner = _wrap_all_tensors(args, level)
            flat, form = pytree.tree_flatten([inner[i] for i in wanted])
            _create_differentiable(flat, level)
            slopes = _slopes(f(*inner), tuple(flat))
            trees = pytree.tree_unflatten(_undo_create_differentiable(slopes, level), form)
        return trees[0] if isinstance(argnums, int) else tuple(trees)

    return gradient


def _slopes(value: Tensor, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The derivatives of `value`, which may be differentiated in turn; zeros where it does not depend."""
    if not value.requires_grad:
        return tuple([torch.zeros_like(t) for t in inputs])
    return torch.autograd.grad(value, inputs, create_graph=True, materialize_grads=True)
