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
from torch import Tensor

from fedpers.clients.ppfl import Personal, PPFLConfig, Weigh
from fedpers.core.errors import ConfigError
from fedpers.core.params import weighted_mean
from fedpers.families.mixtures.mixture import Mixture
from fedpers.families.mixtures.simplex import Affinity, affinity, laplacian, mirror_step, with_rows
from fedpers.families.mixtures.stationarity import Kept, block_weight, offer, stationarity
from fedpers.method import Params, PersonalizedStrategy, Roster, Round, record


@record
class State:
    """Both blocks of variables, and the output drawn so far."""

    theta: Params
    C: Tensor                    # [N, K] float64, rows by position in the roster
    kept: Kept | None = None     # with output=random: a State


class PPFL(PersonalizedStrategy):
    """Trains K canonical models and every client's blend of them."""

    config: PPFLConfig
    mixture = property(lambda self: Mixture.of(self.config, self.model))

    @property
    def needs(self) -> tuple[str, ...]:
        """Label counts, if clients are coupled by them."""
        h = self.config
        return ("label_counts",) if h.affinity == "label_cosine" and h.lam else ()

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
        a, n = h.lam * laplacian(self._affinity, s.C), self.roster.num_total             # [S1]
        if h.algorithm == "rbcd":
            return (yield from self._one_block(s, a, n, rng))
        row = {k: self.row[k] for k in self.sample(rng)}
        w = yield {k: Weigh(s.theta, s.C[i], a[i], n) for k, i in row.items()}           # [S2]
        C = with_rows(s.C, {row[k]: w[k].c for k in w})                                  # [S4]
        new = State(self._mean(w), C, s.kept)
        self.note(stationarity=stationarity(h.local, n / len(a), h.eta_2, s, new))
        return new

    def _one_block(self, s: State, a: Tensor, n: float, rng: np.random.Generator) -> Round:
        if rng.random() < self.config.rho:
            w = yield {k: Personal(s.theta, s.C[i]) for k, i in self.row.items()}        # [S6]
            return replace(s, theta=self._mean(w))
        g = yield {k: Weigh(s.theta, s.C[i], None, n) for k, i in self.row.items()}      # [S7]
        G = 2 * a + with_rows(torch.zeros_like(s.C), {self.row[k]: g[k].c for k in g})
        return replace(s, C=mirror_step(s.C, G, self.config.eta_2, self.config.floor))   # [S8]

    def _mean(self, w: dict[int, Personal]) -> Params:
        n = [self.num_examples(k) for k in w]
        return weighted_mean([w[k].theta for k in w], n)                                 # [S3]

    @cached_property
    def _affinity(self) -> Affinity:
        h, N = self.config, len(self.roster.ids)
        return affinity(h.affinity if h.lam else "none", N, self.roster.properties, h.affinity_file)

    def evaluation_message(self, s: State, k: int) -> Personal:
        """All canonical models and the client's membership; new clients go on from 1/K."""
        z, h = s.kept.value if s.kept else s, self.config
        if k in self.unseen:
            return Personal(z.theta, torch.full_like(z.C[0], 1 / h.num_canonical), h.new_steps)
        return Personal(z.theta, z.C[self.row[k]])

    def explain(self, s: State) -> dict[str, np.ndarray]:
        """Memberships [N, K]."""
        return {"membership": (s.kept.value if s.kept else s).C.cpu().numpy()}

    def models(self, s: State) -> dict[str, Params]:
        """Every canonical model by itself."""
        models = self.mixture.unstack((s.kept.value if s.kept else s).theta)
        return {f"canonical_{k}": m for k, m in enumerate(models)}
