"""ASVRCD-PFL: accelerated stochastic block coordinate descent with control variates.

Hanzely, Zhao, Kolar, "Personalized Federated Learning: A Unified Framework and Universal
Optimization Techniques", https://arxiv.org/abs/2102.09743, Algorithm 4 (Algorithm 3 is the same
method written on copies of the variables). Any objective of families/unified that is a mean
over samples, f_m = 1/n Σ_i f_{m,i}.

    p_w = L_w/(L_w + L_β),  L = 2 max{L_w/p_w, L_β/p_β}   (script L's: of one sample's loss)
    ρ = p_w/n,  η = 1/(4L),  θ_2 = 1/2,  θ_1 = min{1/2, √(ημ max{1/2, θ_2/ρ})}
    γ = 1/max{2μ, 4θ_1/η},  ν = 1 - γμ;  v is the anchor,  G_w = ∇_w F(v),  G_m = 1/M ∇_β f_m(v)

    Server                                             Client m, all of them
    [S0] with `ascd`=R: the first R communications     [C0] as in ASCD-PFL
         are those of ASCD-PFL (strategies/ascd.py)
    [S1] then, once: z = v = y, ask for G_w            (as if the anchor were set)
    [S2] flip the coins of each iteration until one
         says w (p_w) or anchor (ρ), after T others
    [S3] send (w_y, w_z, w_v), G_w, T, coins   ---->   [C1] draw a sample j for each iteration
                                                       [C2] x = θ_1 z + θ_2 v + (1-θ_1-θ_2) y
                                                       iteration of w:
                                                       [C3] D_m = ∇_w f_{m,j}(x) - ∇_w f_{m,j}(v)
                                                            g_m = G_m
                                                       of β, the first T:
                                                       [C4] g_m = (∇_β f_{m,j}(x) - ∇_β f_{m,j}(v))
                                                                  /(p_β M) + G_m
                                                       [C5] w moves by G_w
    both blocks move by  y = x - η g,                  [C6] β moves by g_m
      z = ν z + (1-ν) x - γ g:                         [C7] new anchor: v = y before this iteration,
    [S4] iterations of β: w by G_w                          G_m whole; send D_m, ∇_w f_m(v)
    [S5] of w: by 1/(p_w M) Σ_m D_m + G_w      <----   [C8] keep v and G_m
    [S6] new anchor: w_v = w_y before this iteration,
         G_w = 1/M Σ_m ∇_w f_m(v)

Guarantee: n + √(n L_w/μ) communications and samples in w, the best possible; with ρ = p_β/n
(`refresh: beta`) n + √(n L_β/μ) samples in β.
Deviations from the paper: none from Algorithm 4 (`ascd` is what it advises after Figure 2: ASCD is
faster at first, and stalls). Algorithm 3 prints the z-line with y - y_old for
y - x, which is far slower. Clients get the server's variables anew in each round.
Reductions: with one sample a client it is block-coordinate Katyusha on whole gradients.
"""

from dataclasses import replace

import numpy as np

from fedpers.clients.asvrcd import ASVRCDClient, ASVRCDConfig, descend, middle
from fedpers.core.params import add
from fedpers.families.unified.linear import repeated
from fedpers.families.unified.messages import as_plain
from fedpers.families.unified.strategy import BlockStrategy, State, Steps, average
from fedpers.strategies.ascd import moved


class ASVRCD(BlockStrategy):
    """One sample's gradient, in one block, with momentum and control variates."""

    config: ASVRCDConfig
    keeps, per_step = ASVRCDClient.keeps, ASVRCDClient.per_step
    momentum = True

    def iterate(self, s: State, rng: np.random.Generator) -> Steps:
        """Iterations up to one that communicates."""
        if s.counts.communications < self.config.ascd:
            return (yield from self._without_anchor(s, rng))                             # [S0]
        s = yield from self.first_anchor(s)                                              # [S1]
        order, h, w = self.next_event(s, rng, s.rates.p_w, s.rates.rho), s.rates, s.w    # [S2]
        replies = yield self.everyone(order)                                             # [S3]
        w = repeated(lambda a: descend(a, middle(a, h), a.G, h), w, order.T)             # [S4]
        if order.event:
            g = add(w.G, average(replies), 1 / h.p_w) if order.w_step else w.G           # [S5]
            now = descend(w, middle(w, h), g, h)
            anchor = {"v": w.y, "G": average(replies, "g_v")} if order.refresh else {}   # [S6]
            w = replace(now, **anchor)
        return self.done(s, w, order)

    def anchored(self, rounds: int) -> int:
        """How many of the rounds are ASVRCD's, after those of ASCD."""
        return max(rounds - self.config.ascd, 0)

    def _without_anchor(self, s: State, rng: np.random.Generator) -> Steps:
        order = as_plain(self.next_event(s, rng, s.rates.p_w))
        replies = yield self.everyone(order)
        w = moved(s.w, order, replies, s.rates, "freeze")
        return self.done(s, replace(s.w, y=w.y, z=w.z), order)
