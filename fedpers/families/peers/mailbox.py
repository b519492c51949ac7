"""FedeRiCo's server: models as last published, who wants whose, and who is still warming up."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedpers.core.params import Params
from fedpers.core.pytree import record
from fedpers.families.peers.messages import Alone, Forward, Join, Published, Support, WeightedGradients


@record("peers.Mailbox")
class Mailbox:
    """What the server knows. Peers are numbered by their place in the roster; so are replies here."""

    models: dict[int, Params]  # φ_j as last published by its owner
    wanted: Tensor  # [K, M] B_i
    w: Tensor  # [K, K] w_ij as last heard
    start: Params  # where all models start with start=common
    alone: Tensor  # [K] rounds in which each has trained alone

    def order(self, i: int, warmup: int) -> Forward | Alone | Join:
        """What client i is to do: try models that it asked for, or what brings it into the mailbox."""
        new, exchanges, alone = i not in self.models, self.wanted.shape[1] > 0, self.alone.tolist()
        if exchanges and alone[i] < warmup:
            return Alone(self.models.get(i, self.start))
        if exchanges and new:  # it was not there when all were asked
            return Join(self.start)
        there = [b for b in self.wanted[i].tolist() if b in self.models and alone[b] >= warmup]
        return Forward(self._ids(i, there), tuple(self.models[b] for b in there), self.w[i])

    def came(self, orders: Mapping[int, Any], replies: Mapping[int, Any]) -> "Mailbox":
        """After a round's first replies: weights, wishes, models of those that were alone or late."""
        w, wanted, alone = self.w.clone(), self.wanted.clone(), self.alone.clone()
        for i, reply in replies.items():
            if isinstance(reply, WeightedGradients):
                w[i], wanted[i] = reply.w, reply.wanted
            elif isinstance(orders[i], Alone):
                alone[i] += 1
                w[i] = torch.eye(len(w), dtype=w.dtype, device=w.device)[i]
        own = {i: r for i, r in replies.items() if isinstance(r, Published)}
        return replace(self.published(own), w=w, wanted=wanted, alone=alone)

    def published(self, replies: Mapping[int, Published]) -> "Mailbox":
        """With these models."""
        return replace(self, models=self.models | {i: r.phi for i, r in replies.items()})

    def support(self, i: int, w_min: float) -> Support:
        """The models that client i gives weight to."""
        used = self.w[i] >= self.w[i].max().clamp(max=w_min)
        others = [j for j in sorted(self.models) if j != i and used[j]]
        return Support(self._ids(i, others), tuple(self.models[j] for j in others))

    def _ids(self, i: int, others: list[int]) -> Tensor:
        return torch.tensor([i, *others], device=self.w.device)


def collaborators(replies: Mapping[int, Any]) -> dict[int, WeightedGradients]:
    """The replies of those that tried models of others."""
    return {k: r for k, r in replies.items() if isinstance(r, WeightedGradients)}
