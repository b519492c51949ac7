"""FedSoft: soft clustered federated learning with proximal local updating.

Ruan, Joe-Wong, AAAI 2022, https://arxiv.org/abs/2112.06053, Algorithm 1.

    h_k(w; c, u) = f_k(w) + λ/2 Σ_s u_ks ‖w - c_s‖²,   v_sk = u_ks n_k / Σ_j u_js n_j

    Server                                             Client k
    in round 1, and every τ rounds from there:
    [S1] send c_1..c_S to all N clients        ---->   [C1] each sample i: j(i) = argmin_s l(c_s; i)
                                                       [C2] u_ks = max(n_ks / n_k, σ)
    [S2] keep u_k, n_k                         <----   [C3] send u_k, n_k
    in every round:
    [S3] v_sk over all N clients
    [S4] each s: draw Sel_s, K clients by v_s
    [S5] send c_1..c_S, u_k to ∪_s Sel_s       ---->   [C4] w_k ≈ argmin h_k(w; c, u_k)
                                                       [C5] keep w_k
    [S6] c_s = 1/K Σ_{k in Sel_s} w_k          <----   [C6] send w_k, once

Deviations from the paper: the sum in Eq. 6 is over all clients, not over Sel_s, which v draws; [C4]
starts (not stated) from the own w_k, with one Adam for the whole run; Sel_s has no client twice.
Reductions: S = 1 from the center is FedProx with μ = λ, and with λ = 0 FedAvg; λ = 0 from the own
model is local training; one source a client, σ = λ = 0 from the center is IFCA's model averaging.
"""

import logging
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpers.clients.fedsoft import Estimate, FedSoftConfig, Train
from fedpers.core.sampling import draw
from fedpers.families.clustered.centers import new_centers, new_mean
from fedpers.families.clustered.least_squares import require_least_squares
from fedpers.method import Params, PersonalizedStrategy, Roster, Round, record


@record
class State:
    """The centers, and what is known of the clients."""

    centers: tuple[Params, ...]     # c_1..c_S
    u: Tensor                       # [N, S] float64, of the last estimation
    n: Tensor                       # [N] float64


def aggregation_weights(u: Tensor, n: Tensor) -> Tensor:
    """v [S, N], rows of sum 1 (Eq. 6 over all clients); by n alone for a cluster nobody is near."""
    mass = u.T * n
    total = mass.sum(1, keepdim=True)
    return torch.where(total > 0, mass / total, n / n.sum())


class FedSoft(PersonalizedStrategy):
    """Averages each center from clients that are drawn by how much they resemble it."""

    config: FedSoftConfig

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> State:
        """Centers from a seed each; `params` is where the clients start."""
        h, N = self.config, len(roster.ids)
        if h.solver == "exact":
            require_least_squares(self.model)
        if h.participation == "sampled" and h.sampling == "without_replacement":
            level = logging.WARNING if self._size(N) >= N else logging.INFO
            logging.getLogger("fedpers").log(level, "method.K=%d of %d clients without replacement: "
                "the nearer K is to N, the more alike the centers", self._size(N), N)
        u = torch.full((N, h.S), 1 / h.S, dtype=torch.float64)
        return State(new_centers(self.model, h.S, params, rng), u, roster.num_examples)

    def round(self, s: State, t: int, rng: np.random.Generator) -> Round:
        """One round of Algorithm 1, whose t is our t - 1."""
        if self.config.u_update == "hard" and (t - 1) % self.config.tau == 0:
            s = yield from self._estimate(s)
        v = aggregation_weights(s.u, s.n)                                                # [S3]
        groups = [self._select(row.numpy(), rng) for row in v]                           # [S4]
        union = sorted(set().union(*groups))
        self.note(participants=len(union), importance_max=float(s.u.max(1).values.mean()))
        w = yield {k: self._order(s, k, Train) for k in union}                           # [S5]
        models = {k: reply.w for k, reply in w.items()}
        means = [new_mean(c, models, g) for c, g in zip(s.centers, groups, strict=True)] # [S6]
        return replace(s, centers=tuple(means))

    def _estimate(self, s: State) -> Round:
        known = [k for k in self.roster.ids if self.num_examples(k)]
        told = yield {k: self._order(s, k, Estimate) for k in known}                     # [S1]
        u, n = s.u.clone(), s.n.clone()
        for k, reply in told.items():
            u[self.row[k]], n[self.row[k]] = reply.u.double(), reply.n.double()          # [S2]
        return replace(s, u=u, n=n)

    def _select(self, v: np.ndarray, rng: np.random.Generator) -> dict[int, float]:
        ids, h = self.roster.ids, self.config
        if h.participation == "full":
            return {k: float(p) for k, p in zip(ids, v, strict=True) if p > 0}
        drawn = draw(rng, v, self._size(len(ids)), replace=h.sampling == "with_replacement")
        weigh = v.__getitem__ if h.aggregation == "v_weighted" else Counter(drawn).__getitem__
        return {ids[i]: float(weigh(i)) for i in sorted(set(drawn))}

    def _order(self, s: State, k: int, kind: type) -> Any:
        u = s.u[0] * 0 + 1 / len(s.centers) if k in self.unseen else s.u[self.row[k]]
        return kind(s.centers, u.to(next(iter(s.centers[0].values()))))

    def evaluation_message(self, s: State, k: int) -> Train | None:
        """Clients predict with their own models; a final pass needs the centers."""
        return self._order(s, k, Train) if self.config.final_pass else None

    def explain(self, s: State) -> dict[str, np.ndarray]:
        """The importance weights u [N, S]."""
        return {"importance": s.u.numpy()}

    def models(self, s: State) -> dict[str, Params]:
        """The centers, for new users."""
        return {f"center_{i}": c for i, c in enumerate(s.centers)}

    def _size(self, N: int) -> int:
        return self.config.K or self.plan.clients_per_round or max(1, round(0.6 * N))
