"""Leaving torch.func.vmap and coming back: one call for a whole stack of clients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial, wraps
from typing import Any, ParamSpec

import torch
from torch import Tensor
from torch._C._functorch import (
    _add_batch_dim,
    _remove_batch_dim,
    _vmap_decrement_nesting,
    _vmap_increment_nesting,
    get_unwrapped,
    is_batchedtensor,
    maybe_current_level,
    maybe_get_bdim,
    maybe_get_level,
    pop_dynamic_layer_stack,
    push_dynamic_layer_stack,
)
from torch._functorch.vmap import lazy_load_decompositions

from fedpers.core.pytree import flatten, rebuild, tree_map

P = ParamSpec("P")
_decompositions = lru_cache(maxsize=1)(lazy_load_decompositions)  # found once, not at each call


def over_rows(f: Callable[..., Sequence[Tensor]], *stacks: Tensor) -> list[Tensor]:
    """Stacks of what f makes of each row of `stacks` [C, ...]; it gives tensors only, and draws nothing.

    As torch.vmap, without its handling of trees and dimensions, which takes as long as a small client's step.
    """
    _decompositions()
    count = stacks[0].shape[0]  # len() of a tensor is slow Python code
    level = _vmap_increment_nesting(count, "error")
    try:
        found = f(*[_add_batch_dim(s, 0, level) for s in stacks])
        return [_remove_batch_dim(t, level, count, 0) for t in found]
    finally:
        _vmap_decrement_nesting()


def outside(f: Callable[..., Any], *args: Any) -> Any:
    """f(*args) as if no vmap and no gradient of torch.func were open."""
    open_ones = []
    try:
        while maybe_current_level() is not None:
            open_ones.append(pop_dynamic_layer_stack())
        return f(*args)
    finally:
        while open_ones:
            push_dynamic_layer_stack(open_ones.pop())


def mapped_once() -> bool:
    """Whether `on_stacks` may be called: not inside a gradient, or a vmap of the method's own."""
    return maybe_current_level() in (None, 1) and not torch.is_grad_enabled()


def unwrapped() -> bool:
    """Whether no vmap and no gradient of torch.func is open: every tensor has memory of its own."""
    return maybe_current_level() is None


def readable(tensor: Tensor) -> bool:
    """Whether Python may branch on the value: it is no row of a stack."""
    return not is_batchedtensor(tensor)


def shared(make: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Cache a function's results: plain tensors, read-only, one for each set of arguments.

    For small tensors that are the same in every round: to make one takes far longer than a cache's lookup.
    """

    @lru_cache(256)
    def kept(*args: P.args, **named: P.kwargs) -> Tensor:
        with torch.inference_mode(False):  # which may be open where it is asked for first, as may be a vmap
            return outside(partial(make, *args, **named))  # type: ignore[no-any-return]

    return wraps(make)(kept)  # type: ignore[return-value]  # lru_cache wants what can be hashed


@shared
def scalar(value: float, dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """A number as a tensor."""
    return torch.full((), value, dtype=dtype, device=device)


@shared
def numbers(count: int, device: torch.device | str) -> Tensor:
    """[count] int64, from 0 on."""
    return torch.arange(count, device=device)


def stack_size(tensors: Sequence[Tensor]) -> int:
    """How many clients the stack has that one of the tensors is a row of; 0 if none is."""
    mapped = next((t for t in tensors if is_batchedtensor(t)), None)
    return 0 if mapped is None else int(get_unwrapped(mapped).shape[maybe_get_bdim(mapped)])


def on_stacks(f: Callable[..., Sequence[Tensor]], *tensors: Tensor) -> tuple[Tensor, ...]:
    """This client's rows of what `f` makes of plain stacks [C, ...]: all clients' inside vmap, else of one.

    An `autograd.Function` with a rule for vmap would do the same, a tenth of a millisecond slower.
    """
    mapped = next((t for t in tensors if is_batchedtensor(t)), None)
    if mapped is None:
        return tuple([t.squeeze(0) for t in f(*(t.unsqueeze(0) for t in tensors))])
    count, level = get_unwrapped(mapped).shape[maybe_get_bdim(mapped)], maybe_get_level(mapped)
    stacks = [stack_of(t) if is_batchedtensor(t) else t.expand(count, *t.shape) for t in tensors]
    return tuple([_add_batch_dim(t, 0, level) for t in outside(f, *stacks)])


def all_at_once(f: Callable[..., Any], *trees: Any) -> Any:
    """f(*trees), once for the whole stack: inside vmap f sees stacks [C, ...] where there are tensors.

    Many small steps are twice as fast so. f must be right with such a dimension in front of all tensors, and
    give tensors only (in records, dicts, tuples). What is no tensor may have a `whole`, which f sees then.
    """
    flat, structure = flatten(trees)
    tensors = {id(x): x for x in flat if isinstance(x, Tensor)}
    if not any(map(is_batchedtensor, tensors.values())):
        return f(*trees)
    forms = []

    def run(*stacks: Tensor) -> list[Tensor]:
        seen = dict(zip(tensors, stacks, strict=True))
        args = [seen[id(x)] if id(x) in seen else getattr(x, "whole", x) for x in flat]
        found, form = flatten(f(*rebuild(structure, args)))
        forms.append(form)
        return found

    found = on_stacks(run, *tensors.values())
    return rebuild(forms[0], found)


@dataclass(frozen=True)
class PerClient:
    """Stands inside vmap for values, one a client, that are not stacked; `one_by_one` reads them."""

    rows: Sequence[Any]


def one_by_one(f: Callable[..., Any], *args: Any) -> Any:
    """f(*args), client after client inside vmap, where each reads its own values and may compare them.

    Arguments are trees of rows of stacks, or `PerClient`: values that are larger than what f makes of them,
    so that stacking them would cost the most. f must give tensors (in records, dicts, tuples), of the same
    shapes for all clients.
    """

    def each(*lists: Sequence[Any]) -> Any:
        found = [flatten(f(*row)) for row in zip(*lists, strict=True)]
        columns = zip(*(flat for flat, _ in found), strict=True)
        return rebuild(found[0][1], [torch.stack(column) for column in columns])

    return together(each, *args)


def together(f: Callable[..., Any], *args: Any) -> Any:
    """As `one_by_one` for an f that is asked once: lists of each argument go in, stacks [C, ...] come out."""
    flat, structure = flatten(args)
    columns = [_column(leaf) for leaf in flat]
    count = next((len(c) for c in columns if c is not None), None)
    if count is None:
        return tree_map(lambda stack: stack[0], f(*([a] for a in args)))
    level = maybe_current_level()
    assert level is not None, "the clients of a stack are apart inside vmap only"
    rows = zip(*[c or [leaf] * count for c, leaf in zip(columns, flat, strict=True)], strict=True)
    found = outside(f, *zip(*[rebuild(structure, row) for row in rows], strict=True))
    return tree_map(lambda stack: _add_batch_dim(stack, 0, level), found)


def _column(leaf: Any) -> Sequence[Any] | None:
    """Each client's value; None if all have the same."""
    if isinstance(leaf, PerClient):
        return leaf.rows
    return stack_of(leaf).unbind(0) if isinstance(leaf, Tensor) and is_batchedtensor(leaf) else None


def stack_of(t: Tensor) -> Tensor:
    """The plain stack [C, ...] whose row inside vmap is t; only where `mapped_once`."""
    place = maybe_get_bdim(t)
    return get_unwrapped(t).movedim(place, 0) if place else get_unwrapped(t)


def lift(client: Tensor, make: Callable[..., Tensor], *args: Tensor) -> Tensor:
    """Inside vmap: this client's row of `make(*args)`, where `args` are seen as stacks; else all rows."""
    if not is_batchedtensor(client):
        return make(*args)
    if args:
        return on_stacks(lambda _, *stacks: [make(*stacks)], client, *args)[0]
    return row_of(client, outside(make))  # plain tensors, also inside a gradient


def row_of(client: Tensor, stack: Tensor) -> Tensor:
    """Inside vmap: this client's row of a plain stack [C, ...]; else all rows."""
    if not is_batchedtensor(client):
        return stack
    return _add_batch_dim(stack, 0, maybe_get_level(client))  # vmap does the same with its arguments
