"""Similarity of clients' updates, and the best cut of a set of clients in two."""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from fedpers.core.params import Params


def cosines(items: Sequence[Params]) -> Tensor:
    """Cosine similarities over all entries, [n, n] float64; 0 with an item that is all zero."""
    flat = torch.stack([torch.cat([v.double().reshape(-1) for v in a.values()]) for a in items])
    norm = flat.norm(dim=1, keepdim=True)
    unit = torch.where(norm > 0, flat / norm, 0.0)
    return unit @ unit.T


def bipartition(similarity: Tensor) -> tuple[list[int], list[int]]:
    """The cut of 0..n-1 in two whose most similar pair across is the least similar of all cuts.

    Joins the most similar pairs first until two sets are left (a maximum spanning tree without its
    weakest edge). Ties go to the first pairs. The first set holds item 0; n must be at least 2.
    """
    n = len(similarity)
    pairs = sorted(itertools.combinations(range(n), 2), key=lambda p: -float(similarity[p]))
    label, left = list(range(n)), n
    for i, j in pairs:
        if left == 2:
            break
        if label[i] != label[j]:
            label = [label[i] if x == label[j] else x for x in label]
            left -= 1
    first = [i for i in range(n) if label[i] == label[0]]
    return first, [i for i in range(n) if label[i] != label[0]]
