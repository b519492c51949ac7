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
starts (not stated) from the own w_k, with one Adam for the whole run; Sel_s has no client twice; [S6]
is the mean of those that replied, and c_s itself if nobody did (`failures: skip`).
Reductions: S = 1 from the center is FedProx with μ = λ, and with λ = 0 FedAvg; λ = 0 from the own
model is local training; one source a client, σ = λ = 0 from the center is IFCA's model averaging.
"""

from collections import Counter
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedpers.clients.fedsoft import FedSoftConfig, Train
from fedpers.core.sampling import draw
from fedpers.families.clustered.centers import new_centers, new_mean
from fedpers.families.clustered.importance import aggregation_weights, flattening, signs_of_collapse
from fedpers.families.clustered.least_squares import require_least_squares
from fedpers.families.clustered.messages import Centers
from fedpers.families.mixtures.simplex import with_rows
from fedpers.method import Params, PersonalizedStrategy, Roster, Round, record


@record
class State:
    """The centers, and what is known of the clients."""

    centers: tuple[Params, ...]     # c_1..c_S
    u: Tensor                       # [N, S] float64, of the last estimation
    n: Tensor                       # [N] float64


class FedSoft(PersonalizedStrategy):
    """Averages each center from clients that are drawn by how much they resemble it."""

    config: FedSoftConfig

    @property
    def draws_itself(self) -> str:
        """For each center, by importance weights; with `sampling=full` all clients take part."""
        return "takes all clients" if self.config.sampling == "full" else "draws K clients for each center"

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> State:
        """Centers, each from its own seed; `params` are the clients' initial parameters."""
        h, N = self.config, len(roster.ids)
        if h.solver == "exact":
            require_least_squares(self.model)
        if h.sampling == "without_replacement":
            flattening(self._K(N), N)
        u = torch.full((N, h.S), 1 / h.S, dtype=torch.float64)
        return State(new_centers(self.model, h.S, params, rng, h.start), u, roster.num_examples)

    def round(self, s: State, t: int, rng: np.random.Generator) -> Round:
        """One round of Algorithm 1, whose t is our t - 1."""
        if (t - 1) % self.config.tau == 0:
            s = yield from self._estimate(s)
        v = aggregation_weights(s.u, s.n)                                                # [S3]
        groups = [self._select(row.numpy(), rng) for row in v]                           # [S4]
        union = sorted(set().union(*groups))
        w = yield {k: self._train(s, k) for k in union}                                  # [S5]
        models = {k: reply.w for k, reply in w.items()}
        means = [new_mean(c, models, g) for c, g in zip(s.centers, groups, strict=True)] # [S6]
        rows = [{self.row[k]: p for k, p in g.items()} for g in groups]
        self.note(participants=len(union), **signs_of_collapse(s.u, rows, means, [*models.values()]))
        return replace(s, centers=tuple(means))

    def _estimate(self, s: State) -> Round:
        known = [k for k in self.roster.ids if self.num_examples(k)]
        told = yield dict.fromkeys(known, Centers(s.centers))                           # [S1]
        u = with_rows(s.u, {self.row[k]: reply.u.to(s.u) for k, reply in told.items()})  # [S2]
        n = with_rows(s.n, {self.row[k]: reply.n.to(s.n) for k, reply in told.items()})
        return replace(s, u=u, n=n)

    def _select(self, v: np.ndarray, rng: np.random.Generator) -> dict[int, float]:
        """{client: its weight in the mean}: how often it was drawn, or v where all take part."""
        ids, h = self.roster.ids, self.config
        if h.sampling == "full":
            return {k: float(p) for k, p in zip(ids, v, strict=True) if p > 0}
        times = Counter(draw(rng, v, self._K(len(ids)), replace=h.sampling == "with_replacement"))
        return {ids[i]: float(m) for i, m in times.items()}

    def _K(self, N: int) -> int:
        return self.config.K or self.plan.clients_per_round or max(1, round(0.6 * N))

    def _train(self, s: State, k: int) -> Train:
        return Train(s.centers, s.u[self.row[k]].to(next(iter(s.centers[0].values()))))

    def evaluation_message(self, s: State, k: int) -> Centers | Train | None:
        """None for a client that predicts with its own model; else the centers, with u_k to solve again."""
        if k in self.unseen or self.config.predict in ("center", "mix"):
            return Centers(s.centers)
        return self._train(s, k) if self.config.predict == "solved" else None

    def explain(self, s: State) -> dict[str, np.ndarray]:
        """The importance weights u [N, S]."""
        return {"importance": s.u.numpy()}

    def models(self, s: State) -> dict[str, Params]:
        """The centers, for new users."""
        return {f"center_{i}": c for i, c in enumerate(s.centers)}
