"""SVRCD-PFL: stochastic block coordinate descent with control variates.

Hanzely, Zhao, Kolar, "Personalized Federated Learning: A Unified Framework and Universal
Optimization Techniques", https://arxiv.org/abs/2102.09743, Algorithm 7. Any objective of
families/unified that is a mean over samples, f_m = 1/n Σ_i f_{m,i}.

    p_w, η, ρ as in ASVRCD-PFL;  v is the anchor,  G_w = ∇_w F(v),  G_m = 1/M ∇_β f_m(v)

    Server                                             Client m, all of them
    [S1] before round 1: v = y, ask for G_w            (as if the anchor were set)
    [S2] flip the coins of each iteration until one
         says w (p_w) or anchor (ρ), after T others
    [S3] send w, w_v, G_w, T and the coins     ---->   [C1] draw a sample j for each iteration
                                                       iteration of w:
                                                       [C2] D_m = ∇_w f_{m,j}(y) - ∇_w f_{m,j}(v)
                                                            g_m = G_m
                                                       of β, the first T:
                                                       [C3] g_m = (∇_β f_{m,j}(y) - ∇_β f_{m,j}(v))
                                                                  /(p_β M) + G_m
                                                       [C4] w -= η G_w
                                                       [C5] β_m -= η g_m
    [S4] in iterations of β: w -= η G_w                [C6] new anchor: v = y before this iteration
    [S5] of w: w -= η (1/(p_w M) Σ_m D_m + G_w)<----   [C7] G_m, whole; send D_m, ∇_w f_m(v)
    [S6] new anchor: w_v = w before this iteration,
         G_w = 1/M Σ_m ∇_w f_m(v)

A heuristic of the paper, without a theorem. Deviations from the paper: the box does not subtract
the samples' gradients at v; without that the estimate is biased and its noise is not reduced, so
they are subtracted, as in Algorithm 4. D_m and ∇_w f_m(v) travel together where both are due.
"""

from dataclasses import replace

import numpy as np

from fedpers.clients.svrcd import SVRCDClient, SVRCDConfig, descend
from fedpers.core.params import add
from fedpers.families.unified.linear import repeated
from fedpers.families.unified.strategy import BlockStrategy, State, Steps, average


class SVRCD(BlockStrategy):
    """One sample's gradient, in one block, with control variates."""

    config: SVRCDConfig
    keeps, per_step = SVRCDClient.keeps, SVRCDClient.per_step

    def iterate(self, s: State, rng: np.random.Generator) -> Steps:
        """Iterations up to one that communicates."""
        s = yield from self.first_anchor(s)                                              # [S1]
        order, h, w = self.next_event(s, rng, s.rates.p_w, s.rates.rho), s.rates, s.w    # [S2]
        replies = yield self.everyone(order)                                             # [S3]
        w = repeated(lambda a: descend(a, a.G, h), w, order.T)                           # [S4]
        if order.event:
            g = add(w.G, average(replies), 1 / h.p_w) if order.w_step else w.G           # [S5]
            now = descend(w, g, h)
            anchor = {"v": w.y, "G": average(replies, "g_v")} if order.refresh else {}   # [S6]
            w = replace(now, **anchor)
        return self.done(s, w, order)
