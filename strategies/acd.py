"""ACD-PFL: accelerated block coordinate descent with whole gradients.

Hanzely, Zhao, Kolar, "Personalized Federated Learning: A Unified Framework and Universal
Optimization Techniques", https://arxiv.org/abs/2102.09743, Algorithm 2. Any objective of
families/unified, F(w, β) = 1/M Σ_m f_m(w, β_m).

    S = √L_w + √L_β,  p_w = √L_w/S,  ν = μ/S²,  θ = (√(ν²+4ν) - ν)/2,  η = 1/θ
    x = (1-θ) y + θ z for both blocks
    block that is drawn, with probability p:  y = x - g/L,  z = (z + ην x - η p/L g)/(1+ην)
    block that is not drawn:                  y = x,        z = (z + ην x)/(1+ην)

    Server                                             Client m, all of them
    [S1] flip the coin of each iteration until it
         says w (probability p_w), after T others
    [S2] send (w_y, w_z), T                    ---->   T times, without communication:
                                                       [C1] h_m = 1/M ∇_β f_m(w_x, β_x), whole
                                                       [C2] β is drawn
    [S3] T times: w is not drawn                       [C3] w is not drawn
    [S4] g = 1/M Σ_m g_m                       <----   [C4] send g_m = ∇_w f_m(w_x, β_x), whole
    [S5] w is drawn                                    [C5] β is not drawn

Guarantee: (1-θ)^k; √(L_w/μ) communications and √(L_β/μ) gradients in β, each the best possible.
Deviations from the paper: the box exchanges the sides of the coin, leaves out h_m's 1/M (without
which it diverges) and does not say what y of the block not drawn is; the text and the cited method
do. Its η/(√L S) is η p/L here, the same at the theory's p_w, so that p_w can be set. Clients get
(w_y, w_z) anew in each round instead of keeping copies. Reductions: without a private block (fl) it
is Nesterov's method; with nothing shared (full) each client runs it alone, and M cancels.
"""

import numpy as np

from fedpers.clients.acd import ACDClient, ACDConfig, descend, drift, middle
from fedpers.families.unified.linear import repeated
from fedpers.families.unified.objective import Constants
from fedpers.families.unified.step_sizes import ACDRates, acd_rates
from fedpers.families.unified.strategy import BlockStrategy, State, Steps, average


class ACD(BlockStrategy):
    """Whole gradients, momentum."""

    config: ACDConfig
    keeps, per_step = ACDClient.keeps, ACDClient.per_step
    momentum = True

    def rates(self, c: Constants, n: float) -> ACDRates:
        """The rates of the theory, for the configured probability if there is one."""
        return acd_rates(c, self.config.p_w)

    def iterate(self, s: State, rng: np.random.Generator) -> Steps:
        """Iterations up to one of the w-block."""
        order, h, w = self.next_event(s, rng, s.rates.p_w), s.rates, s.w                 # [S1]
        replies = yield self.everyone(order)                                             # [S2]
        w = repeated(lambda a: drift(a, middle(a, h), h), w, order.T)                    # [S3]
        if order.event:
            g = average(replies)                                                         # [S4]
            w = descend(w, middle(w, h), g, h.p_w, h.L_w, h)                             # [S5]
        return self.done(s, w, order)
