"""Out of torch.func.vmap and back: what a whole stack of clients does in one call."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch._C._functorch import (
    _add_batch_dim,
    get_unwrapped,
    is_batchedtensor,
    maybe_current_level,
    maybe_get_bdim,
    maybe_get_level,
)
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack


def mapped_once() -> bool:
    """Whether `on_stacks` may be called: not inside a gradient, or a vmap of the method's own."""
    return maybe_current_level() in (None, 1) and not torch.is_grad_enabled()


def readable(tensor: Tensor) -> bool:
    """Whether Python may branch on the value: it is no row of a stack."""
    return not is_batchedtensor(tensor)


def on_stacks(f: Callable[..., Sequence[Tensor]], *tensors: Tensor) -> tuple[Tensor, ...]:
    """This client's rows of what `f` makes of plain stacks [C, ...]: all clients' inside vmap, else of one.

    An `autograd.Function` with a rule for vmap would do the same, a tenth of a millisecond slower.
    """
    mapped = next((t for t in tensors if is_batchedtensor(t)), None)
    if mapped is None:
        return tuple([t.squeeze(0) for t in f(*(t.unsqueeze(0) for t in tensors))])
    count, level = get_unwrapped(mapped).shape[maybe_get_bdim(mapped)], maybe_get_level(mapped)
    stacks = [
        get_unwrapped(t).movedim(maybe_get_bdim(t), 0) if is_batchedtensor(t) else t.expand(count, *t.shape)
        for t in tensors
    ]
    with temporarily_clear_interpreter_stack():
        found = f(*stacks)
    return tuple([_add_batch_dim(t, 0, level) for t in found])


def stack_of(t: Tensor) -> Tensor:
    """The plain stack [C, ...] whose row inside vmap is t; only where `mapped_once`."""
    return get_unwrapped(t).movedim(maybe_get_bdim(t), 0)


def lift(client: Tensor, make: Callable[..., Tensor], *args: Tensor) -> Tensor:
    """Inside vmap: this client's row of `make(*args)`, where `args` are seen as stacks."""
    if args:
        return on_stacks(lambda _, *stacks: [make(*stacks)], client, *args)[0]
    # what vmap itself does with its arguments
    with temporarily_clear_interpreter_stack():  # plain tensors, also inside a gradient
        whole = make()
    return _add_batch_dim(whole, 0, maybe_get_level(client))
