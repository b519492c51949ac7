"""A batch of models whose memory addresses are collected once, for sums, distances and scores in turn."""

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from fedpers.core.params import Params, in_doubles, products, same_names, weighted_sum
from fedpers.core.sums import distances, distances_each, known, mixtures, sums_each


class ModelBatch:
    """Models with the same parameter names and shapes, referred to by their position in the batch.

    Raises:
        FedpersError: they do not have the same names.
    """

    def __init__(self, models: Sequence[Params]) -> None:
        if models:
            same_names(*models)
        self.models = models
        self.layers = {k: [w[k] for w in models] for k in models[0]} if models else {}

    def __len__(self) -> int:
        return len(self.models)

    @property
    def like(self) -> Tensor:
        """A tensor with the models' dtype and device."""
        return next(iter(self.layers.values()))[0]

    @cached_property
    def places(self) -> dict[str, list[int]] | None:
        """The memory addresses of the models, layer by layer; None if no kernel may read them."""
        if not all(map(known, self.layers.values())):
            return None
        return {k: [t.data_ptr() for t in layer] for k, layer in self.layers.items()}

    def at(self, chosen: Sequence[int]) -> list[int]:
        """The `places` of the chosen models, layer after layer."""
        assert self.places is not None
        return [places[i] for places in self.places.values() for i in chosen]

    @property
    def shapes(self) -> list[torch.Size]:
        """Of the layers."""
        return [layer[0].shape for layer in self.layers.values()]


def weighted_sums(items: ModelBatch, weights: Tensor) -> list[Params]:
    """Σ_s weights[r, s]·items[s] for each r, in the items' dtype; float64 would take half as long again.

    Args:
        items: S of them.
        weights: [R, S].
    """
    if not len(weights):
        return []
    if items.places is not None:
        whole = mixtures(items.at(range(len(items))), items.shapes, weights.to(torch.float32))
    else:
        whole = [products(weights, layer) for layer in items.layers.values()]
    return [dict(zip(items.layers, rows, strict=True)) for rows in zip(*whole, strict=True)]


def weighted_sum_each(
    items: ModelBatch, chosen: Sequence[int], weights: Sequence[float], counts: Sequence[int]
) -> Params:
    """Stacks [G, ...], `weighted_sum` of each of G groups of items: by a kernel in one call.

    Args:
        chosen: the items of all groups, one group after the other.
        weights: of these.
        counts: [G] how many each group has, at least one.
    """
    layers, names = items.layers.values(), items.layers.keys()
    if items.places is not None and min(counts):
        found = sums_each(items.at(chosen), items.shapes, counts, weights)
    elif not items.like.is_cpu and min(counts):
        found = [_group_sums([layer[i] for i in chosen], counts, weights) for layer in layers]
    else:
        groups = [slice(*ends) for ends in pairwise([0, *accumulate(counts)])]
        rows = [weighted_sum([items.models[i] for i in chosen[g]], weights[g]) for g in groups]
        found = [torch.stack([row[k] for row in rows]) for k in names]
    return dict(zip(names, found, strict=True))


def _group_sums(layer: Sequence[Tensor], counts: Sequence[int], factors: Sequence[float]) -> Tensor:
    """[G, ...] of G groups of items, one after the other in `layer`: in a few calls, for a GPU."""
    like, ends = layer[0], torch.tensor(counts).cumsum(0)
    place = torch.arange(max(counts)).expand(len(counts), -1)
    padded = place >= torch.tensor(counts).unsqueeze(1)  # by a group's first item, of weight 0
    index = (ends - torch.tensor(counts)).unsqueeze(1) + place.masked_fill(padded, 0)
    w = torch.tensor(factors, dtype=torch.float64)[index].masked_fill(padded, 0)
    index, w = index.to(like.device), w.to(like.device).unsqueeze(1)
    parts = in_doubles(layer, w.numel())
    rows = torch.cat([(w @ part[index]).squeeze(1).to(like.dtype) for part in parts], 1)
    return rows.view(len(counts), *like.shape)


def sq_dists(items: ModelBatch, a: Sequence[int], b: Sequence[int]) -> Tensor:
    """[R, S] float64 ‖items[a_r] - items[b_s]‖², to some 1e-7 of each.

    Without a kernel it is ‖a_r‖² + ‖b_s‖² - 2⟨a_r, b_s⟩ in float64, which rounds by 1e-15 of ‖a_r‖² + ‖b_s‖²:
    less than what float32 items are rounded by.
    """
    if not len(a) or not len(b):
        return torch.zeros(len(a), len(b), dtype=torch.float64)
    if items.places is not None:
        return distances(items.shapes, items.at(a), items.at(b))
    total = torch.zeros(len(a), len(b), dtype=torch.float64, device=items.like.device)
    most = max(len(a), len(b))  # so that both sides have the same length
    for layer in items.layers.values():
        sides = [in_doubles([layer[i] for i in side], most) for side in (a, b)]
        for x, y in zip(*sides, strict=True):
            sizes = x.square().sum(1, keepdim=True) + y.square().sum(1)
            total += torch.addmm(sizes, x, y.T, alpha=-2)
    return total.clamp(min=0).cpu()


def sq_dist_each(items: ModelBatch, a: Sequence[int], b: Sequence[int]) -> Tensor:
    """[P] float64 ‖items[a_p] - items[b_p]‖², rounded as by `sq_dists`, but for a GPU's last digits."""
    if not len(a):
        return torch.zeros(0, dtype=torch.float64)
    if items.places is not None:
        return distances_each(items.shapes, items.at(a), items.at(b))
    if not items.like.is_cpu:
        layers = [[[layer[i] for i in side] for layer in items.layers.values()] for side in (a, b)]
        return _pair_distances(*layers).cpu()
    return torch.cat([sq_dists(items, [i], [j])[0] for i, j in zip(a, b, strict=True)])


def _pair_distances(a: Sequence[Sequence[Tensor]], b: Sequence[Sequence[Tensor]]) -> Tensor:
    """[P] float64 of layers [layer][pair]: in a few calls, for a GPU."""
    columns = [zip(in_doubles(x), in_doubles(y), strict=True) for x, y in zip(a, b, strict=True)]
    return torch.stack([(x - y).square().sum(1) for layer in columns for x, y in layer]).sum(0)
