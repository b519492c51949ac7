"""Out of torch.func.vmap and back: what a whole stack of clients does in one call."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import (
    _add_batch_dim,
    _remove_batch_dim,
    get_unwrapped,
    is_batchedtensor,
    maybe_current_level,
    maybe_get_bdim,
    maybe_get_level,
)
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._functorch.vmap import lazy_load_decompositions, vmap_increment_nesting

from fedpers.core.pytree import flatten, rebuild, tree_map


def over_rows(f: Callable[..., Sequence[Tensor]], *stacks: Tensor) -> list[Tensor]:
    """Stacks of what f makes of each row of `stacks` [C, ...]; it gives tensors only, and draws nothing.

    It is torch.vmap without its look at trees and dimensions, which takes as long as a small client does.
    """
    lazy_load_decompositions()
    count = len(stacks[0])
    with vmap_increment_nesting(count, "error") as level:
        found = f(*[_add_batch_dim(s, 0, level) for s in stacks])
        return [_remove_batch_dim(t, level, count, 0) for t in found]


def mapped_once() -> bool:
    """Whether `on_stacks` may be called: not inside a gradient, or a vmap of the method's own."""
    return maybe_current_level() in (None, 1) and not torch.is_grad_enabled()


def unwrapped() -> bool:
    """Whether no vmap and no gradient of torch.func is open: every tensor has memory of its own."""
    return maybe_current_level() is None


def readable(tensor: Tensor) -> bool:
    """Whether Python may branch on the value: it is no row of a stack."""
    return not is_batchedtensor(tensor)


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
    with temporarily_clear_interpreter_stack():
        found = f(*stacks)
    return tuple([_add_batch_dim(t, 0, level) for t in found])


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
class Apart:
    """Stands inside vmap for values, one a client, that are not stacked; `one_by_one` reads them."""

    rows: Sequence[Any]


def one_by_one(f: Callable[..., Any], *args: Any) -> Any:
    """f(*args), client after client inside vmap, where each reads its own values and may compare them.

    Arguments are trees of rows of stacks, or `Apart`: values that are larger than what f makes of them, so
    that stacking them would cost the most. f must give tensors (in records, dicts, tuples), for all clients
    of the same shapes.
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
    with temporarily_clear_interpreter_stack():
        found = f(*zip(*[rebuild(structure, row) for row in rows], strict=True))
    return tree_map(lambda stack: _add_batch_dim(stack, 0, level), found)


def _column(leaf: Any) -> Sequence[Any] | None:
    """Each client's value; None if all have the same."""
    if isinstance(leaf, Apart):
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
    # what vmap itself does with its arguments
    with temporarily_clear_interpreter_stack():  # plain tensors, also inside a gradient
        whole = make()
    return _add_batch_dim(whole, 0, maybe_get_level(client))
