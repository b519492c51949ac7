"""Parameters are dicts of tensors; this is their algebra. Nothing is written in place.

Each primitive that a paper's formula needs is here once, with a test of its value and of its
gradient.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from fedpers.core.errors import FedpersError
from fedpers.core.sums import combined, known, sums_each

Params = dict[str, Tensor]


def same_names(a: Params, *others: Params) -> None:
    """Raise FedpersError unless all have the same entries."""
    names = a.keys()
    for b in others:
        if b.keys() != names:
            odd = sorted(names ^ b.keys())
            raise FedpersError(f"parameters do not match: {', '.join(odd)} on one side only")


def add(a: Params, b: Params, scale: float | Tensor = 1.0) -> Params:
    """a + scale * b."""
    same_names(a, b)
    if isinstance(scale, Tensor):  # one pass over memory, not two
        return {k: torch.addcmul(a[k], scale, b[k]) for k in a}
    return {k: torch.add(a[k], b[k], alpha=scale) for k in a}


def sub(a: Params, b: Params) -> Params:
    """a - b."""
    same_names(a, b)
    return {k: torch.sub(a[k], b[k]) for k in a}


def scale(a: Params, factor: float | Tensor) -> Params:
    """factor * a; of the number 1 `a` itself."""
    if isinstance(factor, float) and factor == 1:
        return a
    return {k: factor * v for k, v in a.items()}


def blend(a: Params, b: Params, share: float | Tensor) -> Params:
    """(1 - share) * a + share * b."""
    same_names(a, b)
    return {k: torch.lerp(a[k], b[k], share) for k in a}


def between(a: Params, b: Params, weights: Params) -> Params:
    """a + (b - a) ⊙ weights, entry by entry, of the parameters that `weights` has."""
    return {k: torch.lerp(a[k], b[k], w) for k, w in weights.items()}


def zeros_like(a: Params) -> Params:
    """Zeros in the shape of `a`."""
    return {k: torch.zeros_like(v) for k, v in a.items()}


def dot(a: Params, b: Params) -> Tensor:
    """Inner product over all entries, a scalar tensor."""
    same_names(a, b)
    return torch.stack([(a[k] * b[k]).sum() for k in a]).sum()


def sq_norm(a: Params) -> Tensor:
    """‖a‖², a scalar tensor."""
    return dot(a, a)


def sq_dist(a: Params, b: Params) -> Tensor:
    """‖a - b‖² over all entries, squared and summed over layers; its gradient in a is 2(a - b)."""
    return sq_norm(sub(a, b))


def weighted_sum(items: Iterable[Params], weights: Iterable[float | Tensor]) -> Params:
    """Σ weight·item, summed in float64 in the given order and returned in the items' dtype.

    Raises:
        FedpersError: the items do not have the same names, or there is none.
    """
    whole = list(items)
    factors = [float(w) for w in weights]
    if not whole:
        raise FedpersError("nothing to aggregate: no client replied")
    if len(whole) != len(factors):
        raise FedpersError(
            f"{len(whole)} items need as many weights to be summed, not {len(factors)} weights"
        )
    same_names(*whole)
    columns = _layers(whole)
    if columns and all(map(known, columns)):
        places, shapes = [t.data_ptr() for column in columns for t in column], [c[0].shape for c in columns]
        totals = [row[0] for row in sums_each(places, shapes, [len(factors)], factors)]
    else:
        totals = [_column_sum(column, factors) for column in columns]
    return dict(zip(whole[0], totals, strict=True))


def rows_of(stacks: Params) -> list[Params]:
    """The parameters of each client, rows of the stacks [C, ...]."""
    columns = zip(*(v.unbind(0) for v in stacks.values()), strict=True)
    return [dict(zip(stacks, row, strict=True)) for row in columns]


def _layers(items: Sequence[Params]) -> list[list[Tensor]]:
    """For each layer its tensor in each item."""
    return [[item[k] for item in items] for k in items[0]]


def _column_sum(column: list[Tensor], factors: list[float]) -> Tensor:
    if not column[0].is_cpu:  # one operation a client would cost more than the sum itself
        return products(torch.tensor([factors], dtype=torch.float64), column)[0]
    total = torch.zeros_like(column[0], dtype=torch.float64)
    for v, factor in zip(column, factors, strict=True):
        total.add_(v, alpha=factor)
    return total.to(column[0].dtype)


AT_ONCE = 4096  # entries of each item at a time, which fit a CPU's cache
ON_GPU = 2**24  # entries of all items at a time on a GPU


def in_doubles(layer: Sequence[Tensor], rows: int = 0) -> Iterator[Tensor]:
    """[S, c] float64: c entries of a layer of S items at a time, fewer if so many `rows` are made of them."""
    at_once = AT_ONCE if layer[0].is_cpu else max(AT_ONCE, ON_GPU // max(len(layer), rows))
    for parts in zip(*(t.reshape(-1).split(at_once) for t in layer), strict=True):
        yield torch.stack(parts).double()


def products(weights: Tensor, layer: Sequence[Tensor]) -> Tensor:
    """[R, ...] Σ_s weights[r, s]·layer[s], by matrix products."""
    like = layer[0]
    w = weights.to(like.device, torch.float64)
    rows = torch.cat([(w @ part).to(like.dtype) for part in in_doubles(layer)], 1)
    return rows.view(len(w), *like.shape)


def weighted_mean(items: Sequence[Params], weights: Sequence[float | Tensor]) -> Params:
    """Σ weight·item / Σ weight.

    Raises:
        FedpersError: the weights do not sum to a positive number.
    """
    total = float(sum(float(w) for w in weights))
    if not total > 0:
        raise FedpersError(f"weights of a mean must sum to a positive number, not {total}")
    return weighted_sum(items, [float(w) / total for w in weights])


def mean(items: Sequence[Params]) -> Params:
    """The plain mean."""
    return weighted_mean(items, [1.0] * len(items))


def combine(items: Sequence[Params], weights: Tensor) -> Params:
    """Σ_s weights[s]·items[s], for a tensor of weights [S]: one row of `combinations`.

    `weighted_sum` is the server's: its weights are numbers and it sums in float64.
    """
    return combinations(items, weights[None])[0]


def combinations(items: Sequence[Params], shares: Tensor) -> list[Params]:
    """Σ_s shares[j, s]·items[s] for each j, in the items' dtype: by a kernel in one pass over memory.

    Args:
        items: S of the same names, shapes and dtype.
        shares: [J, S].
    """
    same_names(*items)
    layers, J = _layers(items), len(shares)
    shares = shares.to(layers[0][0].dtype)
    found = combined(layers, shares)
    if found is None:
        mixed = [torch.tensordot(shares, torch.stack(layer), 1) for layer in layers]
        found = [row for rows in mixed for row in rows]
    return [dict(zip(items[0], found[j::J], strict=True)) for j in range(J)]


def split(a: Params, chosen: Callable[[str], bool]) -> tuple[Params, Params]:
    """(entries whose name is chosen, all others); `merge` undoes it."""
    return {k: v for k, v in a.items() if chosen(k)}, {k: v for k, v in a.items() if not chosen(k)}


def merge(*parts: Params) -> Params:
    """The union of disjoint parts.

    Raises:
        FedpersError: a name is in two parts.
    """
    whole: Params = {}
    for part in parts:
        twice = whole.keys() & part.keys()
        if twice:
            raise FedpersError(f"parameters in two parts at once: {', '.join(sorted(twice))}")
        whole |= part
    return whole


def size(a: Params) -> int:
    """The number of entries."""
    return sum(v.numel() for v in a.values())


def alike(models: Sequence[Params]) -> bool:
    """Whether all have tensors of the same names, shapes and kinds."""
    names = models[0].keys()
    return all([w.keys() == names for w in models]) and all(map(_alike, _layers(models)))


def _alike(column: Sequence[Tensor]) -> bool:
    shape, kind, device = column[0].shape, column[0].dtype, column[0].device
    return all([t.shape == shape and t.dtype is kind and t.device == device for t in column])
