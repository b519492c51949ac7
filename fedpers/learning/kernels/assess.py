"""Losses and accuracies of models that nobody trains, in C: see assess.c."""

from collections.abc import Sequence
from ctypes import c_long

import torch
from torch import Tensor

from fedpers.core.compiled import addresses, longs, pointer, pointers
from fedpers.core.data import Data
from fedpers.core.items import ModelBatch
from fedpers.core.params import Params
from fedpers.learning.kernels.library import library
from fedpers.learning.kernels.native import FAILURES, TASKS, in_rows, targets_of, widths_of


def assess(w: Params, names: Sequence[str], task: str, parts: Sequence[Data]) -> tuple[Tensor, Tensor]:
    """Mean losses and accuracies of C clients' J models on all their samples, [C, J] each; `knows` must hold.

    Args:
        w: stacks [C, J, ...] of parameters.
        names, parts: each layer's weight and bias in turn, whether it has one or not; the clients' data.
    """
    C, J = next(iter(w.values())).shape[:2]
    rows = [t if t is None or t[0, 0].is_contiguous() else t.contiguous() for t in map(w.get, names)]
    first = [None if t is None else (t.data_ptr(), 4 * t.stride(0), 4 * t.stride(1)) for t in rows]
    places = [at and at[0] + c * at[1] + j * at[2] for c in range(C) for j in range(J) for at in first]
    found = _assess(places, widths_of(w, names), task, parts, [c for c in range(C) for _ in range(J)])
    return found.float().view(C, J, 2).unbind(2)  # type: ignore[return-value]


def assess_each(
    models: ModelBatch, names: Sequence[str], task: str, parts: Sequence[Data]
) -> tuple[Tensor, Tensor]:
    """As `assess`, [C, J] each, of models that lie anywhere, client by client; they must have `places`."""
    assert models.places is not None
    C, J = len(parts), len(models) // len(parts)
    none, on = [None] * len(models), [c for c in range(C) for _ in range(J)]
    rows = zip(*[models.places.get(name, none) for name in names], strict=True)
    places = [at for row in rows for at in row]
    found = _assess(places, widths_of(models.models[0], names), task, parts, on)
    return found.float().view(C, J, 2).unbind(2)  # type: ignore[return-value]


def mean_losses(models: Sequence[Params], names: Sequence[str], task: str, parts: Sequence[Data]) -> Tensor:
    """[C, J] float64 mean losses of C clients' samples under J models, as `sample_losses`."""
    shared, pairs, places = _pairs(models, names, parts)
    found = _assess(places, widths_of(models[0], names), task, parts, [c for c, _ in pairs])[:, 0]
    return found.view(len(models), -1).T if shared else found.view(len(parts), -1)


def sample_losses(
    models: Sequence[Params], names: Sequence[str], task: str, parts: Sequence[Data], size: int
) -> Tensor:
    """[C, J, size] the loss of each sample of C clients under J models; 0 beyond a client's samples.

    Args:
        models: stacks [C, ...] of the parameters of each; what all clients share is packed once.
        names, parts: as in `assess`.

    Raises:
        IndexError: a label is no class.
    """
    _, pairs, places = _pairs(models, names, parts)
    found = torch.zeros(len(parts), len(models), size)
    where = [found.data_ptr() + 4 * size * (c * len(models) + j) for c, j in pairs]
    _assess(places, widths_of(models[0], names), task, parts, [c for c, _ in pairs], where)
    return found


def _pairs(
    models: Sequence[Params], names: Sequence[str], parts: Sequence[Data]
) -> tuple[bool, list[tuple[int, int]], list[int | None]]:
    """(whether all clients share each model, pairs of client and model, where the parameters of each lie).

    Client by client each reads its samples once; model by model, if they are shared, each is packed once.
    """
    rows = [[in_rows(w.get(name)) for name in names] for w in models]
    C, J = range(len(parts)), range(len(models))
    shared = all(t is None or not t.stride(0) for row in rows for t in row)
    pairs = [(c, j) for j in J for c in C] if shared else [(c, j) for c in C for j in J]
    firsts = [[None if t is None else (t.data_ptr(), 4 * t.stride(0)) for t in row] for row in rows]
    return shared, pairs, [at and at[0] + c * at[1] for c, j in pairs for at in firsts[j]]


def _assess(
    places: Sequence[int | None],
    widths: Sequence[int],
    task: str,
    parts: Sequence[Data],
    on: Sequence[int],
    each: Sequence[int] | None = None,
) -> Tensor:
    """[n, 2] float64 mean loss and accuracy of models whose parameters are at `places`, model by model.

    Args:
        on: the number of the part whose samples each model is to predict.
        each: the places where the losses of these samples go.
    """
    found = torch.empty(len(on), 2, dtype=torch.float64)
    whole = [(getattr(p, "of", p), getattr(p, "chosen", None)) for p in parts]  # of a Part no row is copied
    targets = [targets_of(data.y, task) for data, _ in whole]
    sizes = [n for p, (data, _) in zip(parts, whole, strict=True) for n in (len(p), len(data))]
    at = [t.data_ptr() for (data, _), y in zip(whole, targets, strict=True) for t in (data.x, y)]
    failed = library().fedpers_assess(
        c_long(len(widths) - 1),
        longs(widths),
        addresses(places),
        TASKS[task],
        c_long(len(on)),
        longs(on),
        longs(sizes),
        addresses(at),
        pointers([chosen for _, chosen in whole]),
        pointer(found),
        None if each is None else addresses(each),
    )
    if failed:
        raise FAILURES[failed]
    return found
