"""IFCA: the iterative federated clustering algorithm, hard clustering by loss.

Ghosh, Chung, Yin, Ramchandran, NeurIPS 2020, https://arxiv.org/abs/2006.04088, Algorithm 1.

    Server                                             Client i
    [S1] draw M, a set of r clients
    [S2] send θ_1..θ_S to each of them         ---->   [C1] s_i = one-hot(argmin_j F_i(θ_j))
    option II, model averaging:
                                                       [C2] θ~_i = τ local steps from its θ_j
    [S3] θ_j = Σ_i s_ij θ~_i / Σ_i s_ij        <----   [C4] send s_i and θ~_i, or g_i
    option I, gradient averaging:
                                                       [C3] g_i = ∇F_i at its θ_j
    [S4] θ_j = θ_j - γ/|M| Σ_i s_ij g_i

Deviations from the paper: a cluster that no client of the round belongs to stays as it is; S is the
paper's k. `weighting: samples` weighs clients by n_i, in both options.
Reductions: S = 1 is FedAvg (with weighting: samples); all in one cluster with option I is gradient
descent; with one source a client it is FedSoft's hard case.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedpers.clients.ifca import IFCAConfig
from fedpers.core.params import add, weighted_sum
from fedpers.families.clustered.centers import new_centers, new_mean
from fedpers.families.clustered.messages import Centers
from fedpers.families.mixtures.simplex import with_rows
from fedpers.method import Params, PersonalizedStrategy, Roster, Round, record


@record
class State:
    """The cluster models, and who was last seen in which cluster."""

    centers: tuple[Params, ...]     # θ_1..θ_S
    identity: Tensor                # [N, S] one-hot; equal shares before


class IFCA(PersonalizedStrategy):
    """Averages each cluster's model over the clients that chose it."""

    config: IFCAConfig
    not_robust = "a client that lies about its cluster is in no mean where it could be outvoted"

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> State:
        """Cluster models, each from its own seed."""
        centers = new_centers(self.model, self.config.S, params, rng, self.config.start)
        shares = torch.full((len(roster.ids), self.config.S), 1 / self.config.S)
        return State(centers, shares.double())

    def round(self, s: State, t: int, rng: np.random.Generator) -> Round:
        """One round of Algorithm 1."""
        selected = self.sample(rng)                                                      # [S1]
        told = yield dict.fromkeys(selected, Centers(s.centers))                         # [S2]
        sent = {i: reply.identity for i, reply in told.items()}
        identity = with_rows(s.identity, {self.row[i]: s_i.to(s.identity) for i, s_i in sent.items()})
        chosen, weights = {i: s_i.tolist() for i, s_i in sent.items()}, {i: self._weight(i) for i in sent}
        step = new_mean if self.config.averaging == "model" else self._descend           # [S3]
        centers = tuple(
            step(center, {i: told[i].update for i in told if chosen[i][j] > 0}, weights)
            for j, center in enumerate(s.centers))
        self.note(smallest_cluster=float(identity.sum(0).min()))
        return replace(s, centers=centers, identity=identity)

    def _descend(self, center: Params, gradients: dict[int, Params], weights: dict[int, float]) -> Params:
        if not gradients:
            return center
        total = sum(weights.values())
        g = weighted_sum([*gradients.values()], [weights[i] / total for i in gradients])
        return add(center, g, -self.config.gamma)                                        # [S4]

    def _weight(self, i: int) -> float:
        return self.num_examples(i) if self.config.weighting == "samples" else 1.0

    def evaluation_message(self, s: State, k: int) -> Centers:
        """All cluster models; a client chooses by itself."""
        return Centers(s.centers)

    def explain(self, s: State) -> dict[str, np.ndarray]:
        """The cluster identities [N, S], as one-hot importance weights."""
        return {"importance": s.identity.numpy()}

    def models(self, s: State) -> dict[str, Params]:
        """The cluster models, for new users."""
        return {f"center_{j}": c for j, c in enumerate(s.centers)}
