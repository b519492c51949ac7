"""ASCD-PFL: accelerated stochastic block coordinate descent, without control variates.

Hanzely, Zhao, Kolar, "Personalized Federated Learning: A Unified Framework and Universal
Optimization Techniques", https://arxiv.org/abs/2102.09743, Algorithm 5. Any objective of
families/unified that is a mean over samples, f_m = 1/n Σ_i f_{m,i}.

    p_w, η, γ, ν as in ASVRCD-PFL;  θ = min{0.8, 1/η};  x = θ z + (1-θ) y for both blocks

    Server                                             Client m, all of them
    [S1] flip the coin of each iteration until it
         says w (probability p_w), after T others
    [S2] send (w_y, w_z), T                    ---->   [C1] draw a sample j for each iteration
                                                       T times, without communication:
                                                       [C2] g = ∇_β f_{m,j}(w_x, β_x)/(p_β M)
                                                       [C3] β_y = β_x - η g
                                                            β_z = ν β_z + (1-ν) β_x - γ g
    [S3] T times: w rests                              [C4] send g_m = ∇_w f_{m,j}(w_x, β_x)
    [S4] g = 1/(p_w M) Σ_m g_m                 <----   [C5] β rests
    [S5] w_y = w_x - η g,  w_z = ν w_z + (1-ν) w_x - γ g

A heuristic of the paper, without a theorem: θ compares a number without units with a step size, so
it depends on the scale of F. Deviations from the paper: the box also keeps an anchor v that nothing
uses, left out. The block not drawn stays as it is (`unsampled: drift` moves it as ACD-PFL would).
"""

import numpy as np

from fedpers.clients.ascd import ASCDClient, ASCDConfig, descend, middle, rest
from fedpers.core.params import scale
from fedpers.families.unified.linear import repeated
from fedpers.families.unified.messages import Block, BlockGradients, Iterate
from fedpers.families.unified.step_sizes import Rates
from fedpers.families.unified.strategy import BlockStrategy, State, Steps, average


class ASCD(BlockStrategy):
    """One sample's gradient, in one block, with momentum."""

    config: ASCDConfig
    keeps = ASCDClient.keeps
    momentum = True

    def iterate(self, s: State, rng: np.random.Generator) -> Steps:
        """Iterations up to one of the w-block."""
        order, h, w = self.next_event(s, rng, s.rates.p_w), s.rates, s.w                 # [S1]
        replies = yield self.everyone(order)                                             # [S2]
        return self.done(s, moved(w, order, replies, h, self.config.unsampled), order)


def moved(w: Block, order: Iterate, replies: dict[int, BlockGradients], h: Rates, unsampled: str) -> Block:
    """w after the iterations that an order asks for."""
    w = repeated(lambda a: rest(a, middle(a, h), h, unsampled), w, order.T)              # [S3]
    if order.event:
        g = scale(average(replies), 1 / h.p_w)                                           # [S4]
        w = descend(w, middle(w, h), g, h)                                               # [S5]
    return w
