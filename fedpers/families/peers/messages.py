"""Clients that own their models and exchange them through the server: messages and routing.

Peers are numbered by their place in the roster.
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from torch import Tensor

from fedpers.core.items import ModelBatch, weighted_sum_each
from fedpers.core.params import Params, rows_of
from fedpers.core.pytree import record


@record("peers.Join")
class Join:
    """Order: send your model; `phi` is where it starts if all start alike."""

    phi: Params


@record("peers.Alone")
class Alone:
    """Order: train your model on your own data alone and send it; `phi` is it, or as in Join."""

    phi: Params


@record("peers.Published")
class Published:
    """Reply: the client's model, for whoever will ask for it."""

    phi: Params


@record("peers.Forward")
class Forward:
    """Order: the models that the client asked for."""

    ids: Tensor  # [1+M] numbers of the client itself and of the owners
    models: tuple[Params, ...]  # M, without the client's own
    w: Tensor  # [K] its weights as last heard; the prior at the start


@record("peers.Candidates")
class Candidates:
    """Order: weigh these models of others."""

    models: tuple[Params, ...]  # M, or as many as there are
    weights: int  # 1+M: how many come back, the own model's first, 0 beyond the models

    @property
    def expects(self) -> dict[str, tuple[int, ...]]:
        """The shape of the weights in a reply."""
        return {"w": (self.weights,)}


@record("peers.WeightedGradients")
class WeightedGradients:
    """Reply: one weighted gradient (or trained model) for each of `ids`."""

    g: tuple[Params, ...]  # own first; empty if the client needs nobody
    w: Tensor  # [K] weights that the client gives
    wanted: Tensor  # [M] the models that it asks for next
    ignored: Tensor  # how many models had a loss that is not finite
    ranges: ClassVar = {"w": (0, 1), "wanted": (0, "clients"), "ignored": (0, None)}
    ragged = True  # a model that was asked for may not be there yet


@record("peers.Step")
class Step:
    """Order: the sum of all that came for the client's model, and of the weights in it."""

    G: Params
    weight: Tensor  # scalar


@record("peers.Support")
class Support:
    """What a client predicts with: the models that it gives weight to, its own left out."""

    ids: Tensor  # [1+S] itself first
    models: tuple[Params, ...]


@record("peers.Newcomer")
class Newcomer:
    """What a client that never trained predicts with: all models, and weights once it has them."""

    models: tuple[Params, ...]
    w: Tensor  # [K]


def sum_by_owner(
    sent: Iterable[tuple[Tensor, Sequence[Params], Sequence[float]]],
) -> dict[int, tuple[Params, float]]:
    """{owner: (sum of what came for it, sum of the weights in it)}, added in the order of senders.

    What came without weight is 0, and is not read.

    Args:
        sent: for each sender the owners' numbers, a message for each, and its K weights.
    """
    mass: dict[int, float] = {}
    heavy: dict[int, list[Params]] = {}
    empty: dict[int, Params] = {}
    for ids, parts, w in sent:
        for b, part in zip(ids.tolist(), parts, strict=True):
            share = w[b]
            mass[b] = mass.get(b, 0.0) + share
            if share:
                heavy.setdefault(b, []).append(part)
            else:
                empty[b] = part
    sums = empty | {b: parts[0] for b, parts in heavy.items()}
    several = {b: parts for b, parts in heavy.items() if len(parts) > 1}
    if several:
        items, counts = (
            ModelBatch([part for parts in several.values() for part in parts]),
            map(len, several.values()),
        )
        totals = weighted_sum_each(items, range(len(items)), [1.0] * len(items), list(counts))
        sums |= zip(several, rows_of(totals), strict=True)
    return {b: (sums[b], mass[b]) for b in sorted(sums)}
