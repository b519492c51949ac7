"""Sums, combinations and distances of many tensors in C, see sums.c; None where there is no kernel."""

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedpers.core.compiled import SHARED, addresses, compiled, hops, longs, pointer, pointers, with_whole_rows
from fedpers.core.threads import in_parts
from fedpers.core.vmap import mapped_once, on_stacks, unwrapped

FINITE = {torch.float32: "fedpers_finite", torch.float64: "fedpers_finite_doubles"}
FEW = 2**15  # below so many numbers torch.stack is as quick
MANY = 2**20  # numbers above which a further thread pays
Columns = Sequence[Sequence[Tensor]]  # for each layer its tensor in each of some models


def stack_of(items: Sequence[Tensor]) -> Tensor:
    """`torch.stack`; a large one is written past the caches, so that its memory is not read first."""
    first = items[0]
    if len(items) * first.numel() < FEW or not known(items):
        return torch.stack(items)  # type: ignore[arg-type]
    found = torch.empty(len(items), *first.shape)
    sizes = ctypes.c_long(len(items)), ctypes.c_long(first.numel())
    library().fedpers_stack(*sizes, pointers(items), pointer(found))
    return found


def all_finite(t: Tensor) -> bool:
    """Whether a tensor holds neither NaN nor infinite numbers."""
    if not t.is_floating_point():
        return True
    if t.is_cpu and t.dtype in FINITE and t.is_contiguous() and unwrapped() and library() is not None:
        return _all_finite(t)
    return bool(torch.isfinite(t).all())


def _all_finite(t: Tensor) -> bool:
    found, kernel, flat = [], getattr(library(), FINITE[t.dtype]), t.view(-1)

    def look(mine: Callable[[int], tuple[int, int]]) -> None:
        part = flat[slice(*mine(len(flat)))]
        found.append(bool(kernel(ctypes.c_long(len(part)), pointer(part))))

    in_parts(look, len(flat), MANY)
    return all(found)


def scaled_rows(
    layers: Columns, chosen: Sequence[tuple[int, int]], weights: Sequence[float]
) -> list[Tensor] | None:
    """For each of L layers [G, ...] rows of stacks times weights; exactly 0 without weight.

    Args:
        layers: for each layer N stacks [C, ...].
        chosen: (n, c) of each row: the stack, and which one of it.
    """
    plain = library() is not None and unwrapped() and all([_is_plain(t) for layer in layers for t in layer])
    if not layers or not plain:
        return None
    stacks = [[with_whole_rows(t) for t in layer] for layer in layers]
    firsts = [[(t.data_ptr(), 4 * t.stride(0)) for t in layer] for layer in stacks]
    used = [(*row, w) for row, w in zip(chosen, weights, strict=True) if w != 0]
    places = [layer[n][0] + c * layer[n][1] for layer in firsts for n, c, _ in used]
    shapes, counts = [layer[0].shape[1:] for layer in layers], [w != 0 for w in weights]
    return sums_each(places, shapes, counts, [w for _, _, w in used])


def sums_each(
    places: Sequence[int], shapes: Sequence[torch.Size], counts: Sequence[int], weights: Sequence[float]
) -> list[Tensor]:
    """For each of L layers [G, ...] Σ weight·item over each of G groups, in float64 in the order of items.

    Args:
        places: where the items of all groups lie, one group after the other, layer after layer.
        shapes: of the layers.
        counts: [G] items of each group.
        weights: of all items.
    """
    found = [torch.empty(len(counts), *shape) for shape in shapes]
    factors = (ctypes.c_double * len(weights))(*weights)
    sizes, G, S, rows = [shape.numel() for shape in shapes], len(counts), len(weights), _rows(found)

    def add_up(mine: Callable[[int], tuple[int, int]]) -> None:
        firsts, ends = zip(*map(mine, sizes), strict=True)
        some = longs([end - first for first, end in zip(firsts, ends, strict=True)])
        items, to = _moved(places, firsts, S), _moved(rows, firsts, G)
        given = ctypes.c_long(len(sizes)), some, ctypes.c_long(G), longs(counts), items, factors, to
        library().fedpers_sums_each(*given)

    in_parts(add_up, S * sum(sizes), MANY)
    return found


def _moved(places: Sequence[int], firsts: Sequence[int], each: int) -> Any:
    """Addresses of the entries from `firsts` on, of `each` rows a layer."""
    return addresses([place + 4 * firsts[i // each] for i, place in enumerate(places)])


def mixtures(places: Sequence[int], shapes: Sequence[torch.Size], shares: Tensor) -> list[Tensor]:
    """For each of L layers [R, ...] Σ_s shares[r, s]·items[s], summed as floats.

    Args:
        places: where the layers of S items lie, layer after layer.
        shapes: of the layers.
        shares: [R, S] float32.
    """
    shares, (R, S) = shares.contiguous(), shares.shape
    found = [torch.empty(R, *shape) for shape in shapes]
    given = addresses(places), longs([0] * len(places)), pointer(shares)
    library().fedpers_combine(*_sizes(shapes, 1, R, S), *given, addresses(_rows(found)))  # as of one client
    return found


def combined(columns: Columns, shares: Tensor) -> Sequence[Tensor] | None:
    """For each of L layers J tensors Σ_s shares[j, s]·items[s], layer after layer; of a client, all at once.

    Args:
        columns: S tensors for each layer, rows of stacks or not.
        shares: [J, S] float32.
    """
    flat = [shares, *(t for column in columns for t in column)]
    plain = all([t.is_cpu and t.dtype is torch.float32 for t in flat])
    return on_stacks(combine_stacks, *flat) if plain and mapped_once() and library() is not None else None


def combine_stacks(shares: Tensor, *items: Tensor) -> list[Tensor]:
    """`combined` of all clients: stacks [C, ...] of shares [C, J, S] and L·S items [C, ...]."""
    stacks, shares, (C, J, S) = [with_whole_rows(t) for t in items], shares.contiguous(), shares.shape
    layers = stacks[::S]
    found = [torch.empty(C, *layer.shape[1:]) for layer in layers for _ in range(J)]
    sizes = ctypes.c_long(len(layers)), longs([layer[0].numel() for layer in layers])
    given = pointers(stacks), hops(stacks), pointer(shares)
    library().fedpers_combine(*sizes, *map(ctypes.c_long, (C, J, S)), *given, pointers(found))
    return found


def distances(shapes: Sequence[torch.Size], a: Sequence[int], b: Sequence[int]) -> Tensor:
    """[R, S] float64 ‖a_r - b_s‖² over all layers, to some 1e-7 of each.

    Differences are float32, their sum float64.

    Args:
        shapes: of the layers.
        a, b: where the layers of R and S items lie, layer after layer.
    """
    found = torch.zeros(len(a) // len(shapes), len(b) // len(shapes), dtype=torch.float64)
    given = addresses(a), addresses(b), pointer(found)
    library().fedpers_distances(*_sizes(shapes, *found.shape), *given)
    return found


def distances_each(shapes: Sequence[torch.Size], a: Sequence[int], b: Sequence[int]) -> Tensor:
    """[P] float64 ‖a_p - b_p‖² over all layers, as by `distances`."""
    found = torch.zeros(len(a) // len(shapes), dtype=torch.float64)
    given = addresses(a), addresses(b), pointer(found)
    library().fedpers_distances_each(*_sizes(shapes, len(found)), *given)
    return found


def class_sums(x: Sequence[Tensor], y: Sequence[Tensor], K: int) -> tuple[Tensor, Tensor] | None:
    """([C, K, M] sums over the rows of each class, [C, K] how many these are) of C clients.

    Args:
        x: [n, M] of each client.
        y: [n] int64 labels; one that is none of the K classes counts nowhere.
    """
    M = x[0].shape[-1]
    if not all([_rows_known(rows, labels, M) for rows, labels in zip(x, y, strict=True)]):
        return None
    found, n = torch.zeros(len(x), K, M), torch.zeros(len(x), K)
    counts = ctypes.c_long(len(x)), longs([len(labels) for labels in y])
    sizes = ctypes.c_long(K), ctypes.c_long(M)
    library().fedpers_class_sums(*counts, pointers(x), pointers(y), *sizes, pointer(found), pointer(n))
    return found, n


def _rows_known(x: Tensor, y: Tensor, M: int) -> bool:
    """Whether x are plain float32 [n, M], and y so many plain whole numbers."""
    plain = y.is_cpu and y.dtype is torch.int64 and y.is_contiguous()
    return plain and x.shape == (*y.shape, M) and y.dim() == 1 and known([x])


SOURCES = [SHARED, *(Path(__file__).with_name(f"{name}.c") for name in ("sums", "seeds"))]


@lru_cache(maxsize=1)
def library() -> Any:
    """The compiled kernels; None without a compiler, or if they are switched off."""
    return compiled(SOURCES)


def _is_plain(t: Tensor) -> bool:
    return t.is_cpu and t.dtype is torch.float32 and not t.requires_grad


def known(tensors: Sequence[Tensor]) -> bool:
    """Whether all are contiguous float32 tensors on the CPU, of one shape, without a gradient."""
    shape, kind = tensors[0].shape, torch.float32
    plain = all([t.is_cpu and t.dtype is kind and t.shape == shape and t.is_contiguous() for t in tensors])
    differentiates = torch.is_grad_enabled() and any([t.requires_grad for t in tensors])
    return plain and unwrapped() and not differentiates and library() is not None


def _sizes(shapes: Sequence[torch.Size], *rows: int) -> tuple[Any, ...]:
    """The first arguments of these functions: how many layers, their sizes, and the items on each side."""
    sizes = longs([shape.numel() for shape in shapes])
    return ctypes.c_long(len(shapes)), sizes, *map(ctypes.c_long, rows)


def _rows(stacks: Sequence[Tensor]) -> list[int]:
    """Where the rows of new stacks lie, stack after stack."""
    firsts = [(t.data_ptr(), 4 * t.stride(0), t.shape[0]) for t in stacks]
    return [first + hop * r for first, hop, rows in firsts for r in range(rows)]
