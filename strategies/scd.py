"""SCD-PFL: stochastic block coordinate descent.

Hanzely, Zhao, Kolar, "Personalized Federated Learning: A Unified Framework and Universal
Optimization Techniques", https://arxiv.org/abs/2102.09743, Algorithm 6. Any objective of
families/unified/objectives.py that is a mean over samples, f_m = 1/n Σ_i f_{m,i}.

    p_w = L_w/(L_w + L_β),  η = 1/(8 max{L_w/p_w, L_β/p_β})   (script L's: of one sample's loss)

    Server                                             Client m, all of them
    [S1] flip the coin of each iteration until it
         says w (probability p_w), after T others
    [S2] send w, T                             ---->   [C1] draw a sample j for each iteration
                                                       T times, without communication:
                                                       [C2] β_m -= η/(p_β M) ∇_β f_{m,j}(w, β_m)
    [S3] w -= η/p_w 1/M Σ_m g_m                <----   [C3] send g_m = ∇_w f_{m,j}(w, β_m)

A heuristic of the paper, without a theorem; it stalls where the gradients' noise at the optimum
stops it. Deviations from the paper: none. Reductions: without a private block (fl) it is parallel
SGD; with one sample a client nothing is random but the block, and it converges to the optimum.
"""

import numpy as np

from fedpers.clients.scd import SCDConfig
from fedpers.core.params import add
from fedpers.families.unified.messages import Point
from fedpers.families.unified.strategy import BlockStrategy, State, Steps, average


class SCD(BlockStrategy):
    """One sample's gradient, in one block."""

    config: SCDConfig

    def iterate(self, s: State, rng: np.random.Generator) -> Steps:
        """Iterations up to one of the w-block."""
        order, w, h = self.next_event(s, rng, s.rates.p_w), s.w.y, s.rates               # [S1]
        replies = yield self.everyone(order)                                             # [S2]
        if order.w_step:
            w = add(w, average(replies), -h.eta / h.p_w)                                 # [S3]
        return self.done(s, Point(w), order)
