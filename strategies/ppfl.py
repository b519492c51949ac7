"""PPFL (Di, Yang, Ye, Chang): canonical models, and every client's own blend of them.

https://arxiv.org/abs/2310.14337, Algorithm 3 (default) and Algorithm 1 with Algorithm 2.

    min Σ_i p_i f_i(θ, c_i) + λ/2 Σ_ij w_ij ‖c_i - c_j‖²,  c_i in the simplex,  L = diag(W 1) - W
    θ: K canonical models and what all share;  C: rows c_i, client i's membership

    Algorithm 3 (alternating)
    Server                                           Client i
    [S1] a_i = λ (L C)_i
    [S2] send θ, c_i, a_i, p_i               ---->   [C1] g = p_i ∇_c f_i(θ, c_i) + 2 a_i, all data
                                                     [C2] c_i ∝ c_i exp(-η_2 g)
                                                     [C3] w = θ; E times w -= η_1 ∇_θ f_i(w, c_i; ξ)
    [S3] θ = Σ_i p_i w_i                     <----   [C4] send w, c_i
    [S4] row i of C = c_i

    Algorithm 1 (rbcd), with Algorithm 2 on the clients
    [S5] draw the output: take (θ, C) with probability q_t / Σ_{s<=t} q_s (eq. 16)
    [S6] draw the block: θ with probability ρ_1, else C
    [S7] θ: send θ, c_i                      ---->   [C5] w = θ; E times w -= η_1 ∇_θ f_i(w, c_i; ξ)
    [S8] θ = Σ_i p_i w_i                     <----   [C6] send w
    [S9] C: send θ, c_i, p_i                 ---->   [C7] g_i = p_i ∇_c f_i(θ, c_i; ξ)
    [S10] G = (g_i) + 2 λ L C                <----   [C8] send g_i
    [S11] c_i ∝ c_i exp(-η_2 G_i) for all i that sent

Deviations (reasons in docs/methods/ppfl.md): p_i = 1 in g unless `membership_weighting=p`; entries of
c_i below a floor are raised to it and the row is divided by its sum; clients send w, not w - θ; only the
server remembers c_i; Algorithm 3 may sample clients.
Reductions: K = 1 is FedAvg; λ = 0 and one-hot C is clustered FL, scaled by each cluster's weight.
"""

from dataclasses import replace

import numpy as np
import torch

from fedpers.clients.ppfl import PPFLConfig
from fedpers.families.mixtures.messages import BothBlocks, MembershipBlock, ThetaBlock
from fedpers.families.mixtures.simplex import mirror_step, spread, with_rows
from fedpers.families.mixtures.stationarity import block_weight, offer
from fedpers.families.mixtures.strategy import MixtureStrategy, State
from fedpers.learning.training_round import rate
from fedpers.method import Round


class PPFL(MixtureStrategy):
    """Trains K canonical models and each client's mixture weights."""

    config: PPFLConfig

    def round(self, s: State, t: int, rng: np.random.Generator) -> Round:
        """One round of Algorithm 3, or of Algorithm 1; the schedule is that of both blocks."""
        h = self.config
        eta_2 = h.eta_2 * rate(h.local, t)
        if h.stationarity:
            yield from self.measure(s, eta_2)
        return (yield from (self._algorithm_1(s, eta_2, rng) if h.algorithm == "rbcd"
                            else self._algorithm_3(s, t, eta_2, rng)))

    def _algorithm_3(self, s: State, t: int, eta_2: float, rng: np.random.Generator) -> Round:
        a, selected = self.pull(s), self.sample(rng)                                     # [S1]
        rows = [self.row[k] for k in selected]
        w = yield {k: BothBlocks(s.theta, c_k, a_k, self.p(k), eta_2)                    # [S2]
                   for k, c_k, a_k in zip(selected, s.C[rows], a[rows], strict=True)}
        theta = self.mean(w)                                                             # [S3]
        C = with_rows(s.C, {self.row[k]: w[k].c for k in w})                             # [S4]
        self.note(entropy=spread(C, t, self.config.eta_2))
        return State(theta, C)

    def _algorithm_1(self, s: State, eta_2: float, rng: np.random.Generator) -> Round:
        h = self.config
        if h.output == "random":
            q = block_weight(eta_2, h.rho, *h.smoothness)
            s = replace(s, kept=offer(s.kept, State(s.theta, s.C), q, rng))              # [S5]
        if rng.random() < h.rho:                                                         # [S6]
            w = yield {k: ThetaBlock(s.theta, s.C[i]) for k, i in self.row.items()}      # [S7]
            return replace(s, theta=self.mean(w))                                        # [S8]
        g = yield {k: MembershipBlock(s.theta, s.C[i], self.p(k)) for k, i in self.row.items()}  # [S9]
        rows, pull = [self.row[k] for k in g], 2 * self.pull(s)
        G = torch.stack([g[k].c for k in g]) + pull[rows]                                # [S10]
        new = mirror_step(s.C[rows], G, eta_2, h.floor)                                  # [S11]
        return replace(s, C=with_rows(s.C, dict(zip(rows, new, strict=True))))
