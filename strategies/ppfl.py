"""PPFL (Di, Yang, Ye, Chang): canonical models, and every client's own blend of them.

https://arxiv.org/abs/2310.14337, Algorithm 3 (default) and Algorithm 1 with Algorithm 2.

    min Σ_i p_i f_i(θ, c_i) + λ/2 Σ_ij w_ij ‖c_i - c_j‖²,  c_i in the simplex,  L = diag(W 1) - W
    θ: K canonical models and what all share;  C: rows c_i, client i's membership

    Algorithm 3 (alternating)
    Server                                           Client i
    [S1] a_i = λ (L C)_i
    [S2] send θ, c_i, a_i                    ---->   [C1] g = p_i ∇_c f_i(θ, c_i) + 2 a_i, all data
                                                     [C2] c_i ∝ c_i exp(-η_2 g), at least the floor
                                                     [C3] w = θ; E times w -= η_1 ∇_θ f_i(w, c_i; ξ)
    [S3] θ = Σ_i p_i w_i                     <----   [C4] send w, c_i
    [S4] row i of C = c_i

    Algorithm 1 (rbcd), with Algorithm 2 on the clients
    [S5] draw the output: take (θ, C) with probability q_t / Σ_{s<=t} q_s (eq. 16)
    [S6] block θ, with probability ρ_1: send θ, c_i; clients do [C3] [C4]; then [S3]
    [S7] else block C: send θ, c_i           <--->   [C5] send p_i ∇_c f_i(θ, c_i; ξ)
    [S8] c_i ∝ c_i exp(-η_2 (p_i ∇_c f_i + 2 λ (L C)_i)) for all i, at least the floor

Deviations (reasons in docs/methods/ppfl.md): no p_i in [C1] [C5] unless `membership_weighting=p`;
clients send w, not w - θ; only the server remembers c_i; Algorithm 3 may sample clients.
Reductions: K = 1 is FedAvg; λ = 0 and one-hot C is clustered FL, scaled by each cluster's weight.
"""

from dataclasses import replace
from functools import cached_property

import numpy as np
import torch

from fedpers.clients.ppfl import PPFLConfig
from fedpers.core.errors import ConfigError
from fedpers.families.mixtures.messages import BothBlocks, MembershipBlock, Personal, ThetaBlock, Trained
from fedpers.families.mixtures.mixture import Mixture
from fedpers.families.mixtures.simplex import Affinity, affinity, laplacian, mirror_step, spread, with_rows
from fedpers.families.mixtures.stationarity import Kept, block_weight, offer, stationarity
from fedpers.learning.training_round import in_round
from fedpers.method import Params, PersonalizedStrategy, Roster, Round, record, weighted_mean


@record
class State:
    """Both blocks of variables, and the output drawn so far."""

    theta: Params
    C: torch.Tensor                    # [N, K] float64, rows by position in the roster
    kept: Kept | None = None     # with output=random: a State
    output = property(lambda self: self.kept.value if self.kept else self)


class PPFL(PersonalizedStrategy):
    """Trains K canonical models and every client's blend of them."""

    config: PPFLConfig
    mixture = property(lambda self: Mixture.of(self.config, self.model))

    @property
    def needs(self) -> tuple[str, ...]:
        """Label counts, if clients are coupled by them."""
        return ("label_counts",) if self.config.affinity == "label_cosine" and self.config.lam else ()

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> State:
        """Canonical models apart from each other, memberships uniform."""
        K, N = self.config.num_canonical, len(roster.ids)
        if self.config.algorithm == "rbcd" and self.num_sampled < N:
            raise ConfigError("method.algorithm=rbcd needs all clients: clients_per_round=null")
        C = torch.full((N, K), 1 / K, dtype=torch.float64, device=self.plan.device)
        return State(self.mixture.start(params, K, rng), C)

    def round(self, s: State, t: int, rng: np.random.Generator) -> Round:
        """One round of Algorithm 3, or of Algorithm 1."""
        h = self.config
        if h.output == "random":
            q = block_weight(h.eta_2, h.rho, *h.smoothness)
            s = replace(s, kept=offer(s.kept, State(s.theta, s.C), q, rng))              # [S5]
        return (yield from self._rbcd(s, rng) if h.algorithm == "rbcd" else self._alternating(s, t, rng))

    def _alternating(self, s: State, t: int, rng: np.random.Generator) -> Round:
        h, n, i = self.config, self.roster.num_total, self.row
        a = h.lam * laplacian(self._affinity, s.C)                                       # [S1]
        w = yield {k: BothBlocks(s.theta, s.C[i[k]], a[i[k]], n) for k in self.sample(rng)}  # [S2]
        new = State(self._mean(w), with_rows(s.C, {i[k]: w[k].c for k in w}), s.kept)    # [S3] [S4]
        measure = stationarity(in_round(h, t).local, n / len(a), h.eta_2, s, new)
        self.note(entropy=spread(new.C, t, h.eta_2), stationarity=measure)
        return new

    def _rbcd(self, s: State, rng: np.random.Generator) -> Round:
        h, n = self.config, self.roster.num_total
        if rng.random() < h.rho:
            w = yield {k: ThetaBlock(s.theta, s.C[i]) for k, i in self.row.items()}      # [S6]
            return replace(s, theta=self._mean(w))
        g = yield {k: MembershipBlock(s.theta, s.C[i], n) for k, i in self.row.items()}  # [S7]
        G = 2 * h.lam * laplacian(self._affinity, s.C) + with_rows(0 * s.C, {self.row[k]: g[k].c for k in g})
        return replace(s, C=mirror_step(s.C, G, h.eta_2, h.floor))                       # [S8]

    def _mean(self, w: dict[int, Trained]) -> Params:
        return weighted_mean([w[k].theta for k in w], [self.num_examples(k) for k in w])

    @cached_property
    def _affinity(self) -> Affinity:
        h, told = self.config, self.roster.properties
        return affinity(h.affinity if h.lam else "none", len(self.row), told, h.affinity_file)

    def evaluation_message(self, s: State, k: int) -> Personal:
        """All canonical models and the client's membership; new clients go on from 1/K."""
        theta, C = s.output.theta, s.output.C
        if k in self.unseen:
            return Personal(theta, torch.full_like(C[0], 1 / C.shape[1]), self.config.new_steps)
        return Personal(theta, C[self.row[k]])

    def explain(self, s: State) -> dict[str, np.ndarray]:
        """Memberships [N, K]."""
        return {"membership": s.output.C.cpu().numpy()}

    def models(self, s: State) -> dict[str, Params]:
        """Every canonical model by itself."""
        return {f"canonical_{k}": m for k, m in enumerate(self.mixture.unstack(s.output.theta))}
