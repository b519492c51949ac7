"""FedeRiCo's server: models as last published, who wants whose, and who is still warming up."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedpers.core.params import Params
from fedpers.core.pytree import record
from fedpers.families.peers.messages import Alone, Forward, Join, Published, Support, WeightedGradients


@record("peers.Mailbox")
class PeerDirectory:
    """What the server knows. Peers are numbered by their place in the roster; so are replies here."""

    models: dict[int, Params]  # φ_j as last published by its owner
    wanted: Tensor  # [K, M] B_i
    w: Tensor  # [K, K] w_ij as last heard
    start: Params  # where all models start with start=common
    alone: Tensor  # [K] rounds in which each has trained alone

    def orders(self, clients: Sequence[int], warmup: int) -> list[Forward | Alone | Join]:
        """What each client is to do: try models that it asked for, or what brings it into the mailbox."""
        alone, exchanges = self.alone.tolist(), self.wanted.shape[1] > 0
        ready = {b for b in self.models if alone[b] >= warmup}
        found: list[Forward | Alone | Join] = []
        for i, wanted, w in zip(clients, self.wanted[clients].tolist(), self.w[clients], strict=True):
            if exchanges and alone[i] < warmup:
                found.append(Alone(self.models.get(i, self.start)))
            elif exchanges and i not in self.models:  # it was not there when all were asked
                found.append(Join(self.start))
            else:
                there = [b for b in wanted if b in ready]
                found.append(Forward(self._ids(i, there), tuple([self.models[b] for b in there]), w))
        return found

    def came(self, orders: Mapping[int, Any], replies: Mapping[int, Any]) -> "PeerDirectory":
        """After a round's first replies: weights, wishes, models of those that were alone or late."""
        w, wanted, alone = self.w.clone(), self.wanted.clone(), self.alone
        tried = collaborators(replies)
        if tried:
            rows = list(tried)
            w[rows] = torch.stack([reply.w for reply in tried.values()]).to(w.device)
            wanted[rows] = torch.stack([reply.wanted for reply in tried.values()]).to(wanted.device)
        warm = [i for i in replies if i not in tried and isinstance(orders[i], Alone)]
        if warm:
            alone = alone.clone()
            alone[warm] += 1
            w[warm] = 0
            w[warm, warm] = 1
        own = {i: r for i, r in replies.items() if isinstance(r, Published)}
        return replace(self.published(own), w=w, wanted=wanted, alone=alone)

    def published(self, replies: Mapping[int, Published]) -> "PeerDirectory":
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
