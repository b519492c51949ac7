"""CFL: clustered federated learning by recursive bipartition.

Sattler, Müller, Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task
Optimization Under Privacy Constraints", https://arxiv.org/abs/1910.01991, Algorithms 1 to 3.

    Server                                             Client i in cluster c
    [S1] draw a set of r clients
    [S2] send each its cluster's model θ_c     ---->   [C1] Δ_i = SGD on f_i from θ_c, less θ_c
    each c, Δ_c = Σ n_i Δ_i / Σ n_i:           <----   [C2] send Δ_i
    [S3] stalled if ‖Δ_c‖ < ε1 and max_i ‖Δ_i‖ > ε2
    [S4] stalled: α_ij = cos(Δ_i, Δ_j)
    [S5] c1, c2 = the cut with the least max α_ij over i in c1, j in c2
    [S6] split if γ_max < sqrt((1 - α_cross) / 2)
    [S7] each cluster, or each of its halves: θ += Σ n_i Δ_i / Σ n_i

A stationary point of the mean that is none for its members says that they disagree.

Deviations from the paper: where r < N, the members of a stalled cluster that were not drawn are
asked for their updates in a second exchange, as a cut needs them all (the paper draws everybody); a
cluster is not cut in a round in which a member failed; halves start from θ_c plus their own mean
update, as the authors' code does. γ_max = 0 leaves [S6] without effect, which is that code too.
Reductions: ε1 = 0 never splits and is FedAvg.
"""

from typing import Any

import numpy as np

from fedpers.clients.cfl import AllClusters, CFLConfig, MemberModel
from fedpers.core.items import ModelBatch, sq_dists
from fedpers.core.params import add, weighted_mean, zeros_like
from fedpers.families.clustered.bipartition import bipartition, cosines
from fedpers.method import Params, PersonalizedStrategy, Roster, Round, record

Members = tuple[int, ...]


@record
class State:
    """The clusters, by partition ids, and a model for each."""

    clusters: tuple[Members, ...]
    params: tuple[Params, ...]


class CFL(PersonalizedStrategy):
    """FedAvg in clusters; a cluster is split in two where its members' updates contradict each other."""

    weighs_by_samples = True
    config: CFLConfig
    not_robust = "it forms clusters from single changes before it takes a mean"

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> State:
        """One cluster that holds all clients."""
        return State((tuple(roster.ids),), (params,))

    def round(self, s: State, t: int, rng: np.random.Generator) -> Round:
        """One round in every cluster."""
        selected = self.sample(rng)                                                      # [S1]
        deltas = dict((yield {k: self.evaluation_message(s, k) for k in selected}))      # [S2]
        moves = {c: self._mean(c, deltas) for c in s.clusters}
        stalled = [c for c in s.clusters if self._stalled(c, moves[c], deltas)]
        rest = {k for c in stalled for k in c} - set(selected)
        if rest:
            deltas |= yield {k: self.evaluation_message(s, k) for k in sorted(rest)}
        clusters: list[Members] = []
        params: list[Params] = []
        for members, theta in zip(s.clusters, s.params, strict=True):
            for part in self._cut(members, deltas) if members in stalled else (members,):
                clusters.append(part)
                move = self._mean(part, deltas) if members in stalled else moves[part]
                params.append(add(theta, move) if move else theta)                       # [S7]
        self.note(clusters=len(clusters))
        return State(tuple(clusters), tuple(params))

    def _mean(self, members: Members, deltas: dict[int, Any]) -> Params:
        """Δ_c; {} if no member has sent a change."""
        there = [k for k in members if k in deltas]
        n = [self.num_examples(k) for k in there]
        return weighted_mean([deltas[k].params for k in there], n) if there else {}

    def _stalled(self, members: Members, mean: Params, deltas: dict[int, Any]) -> bool:
        if len(members) < 2 or not mean:
            return False
        changes = ModelBatch([zeros_like(mean), mean, *(deltas[k].params for k in members if k in deltas)])
        whole, *each = sq_dists(changes, [0], range(1, len(changes)))[0].sqrt().tolist()
        return whole < self.config.eps1 and max(each) > self.config.eps2                 # [S3]

    def _cut(self, members: Members, deltas: dict[int, Any]) -> tuple[Members, ...]:
        if any(k not in deltas for k in members):
            return (members,)
        alpha = cosines([deltas[k].params for k in members])                             # [S4]
        first, second = bipartition(alpha)                                               # [S5]
        across = float(alpha[first][:, second].max())
        if not self.config.gamma_max < max((1 - across) / 2, 0.0) ** 0.5:                # [S6]
            return (members,)
        return tuple(members[i] for i in first), tuple(members[i] for i in second)

    def evaluation_message(self, s: State, k: int) -> MemberModel | AllClusters:
        """The model of the client's cluster; all of them for a client that is in none."""
        if k in self.unseen:
            return AllClusters(s.params)
        return MemberModel(s.params[next(c for c, members in enumerate(s.clusters) if k in members)])

    def explain(self, s: State) -> dict[str, np.ndarray]:
        """The number of each client's cluster, [N]."""
        number = {k: c for c, members in enumerate(s.clusters) for k in members}
        return {"cluster": np.array([number[k] for k in self.roster.ids])}

    def models(self, s: State) -> dict[str, Params]:
        """The clusters' models."""
        return {f"cluster_{c}": theta for c, theta in enumerate(s.params)}
