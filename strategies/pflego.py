"""PFLEGO: personalised federated learning with exact gradient-based optimisation.

Nikoloutsopoulos, Koutsopoulos, Titsias, "Personalized Federated Learning with Exact Stochastic
Gradient Descent", https://arxiv.org/abs/2202.09848, Algorithm 1.

    L(θ, W_1..W_I) = Σ_i α_i l_i(W_i, θ),   α_i = N_i / Σ_j N_j over all I clients

    Server                                             Client i (selected)
    [S1] draw I_t, Pr(i in I_t) = r/I
    [S2] send θ_{t-1}, I/r                     ---->   [C1] F = φ(X_i; θ), once, cached
                                                       [C2] τ-1 times: W_i -= β ∇_W l_i(W_i; F)
                                                       [C3] (g_W, g_i) = ∇ l_i at (W_i, θ), jointly
                                                       [C4] W_i -= ρ (I/r) α_i g_W
    [S3] G = (I/r) Σ_{i in I_t} α_i g_i        <----   [C5] send g_i, keep W_i
    [S4] θ_t = θ_{t-1} - ρ G, or a step of Adam on G

[C4] and [S4] together are one exact stochastic gradient step on L: over the choice of I_t its
expectation is the full gradient.

Deviations from the paper: Algorithm 1 prints [C4] without α_i while Eq. 5, which makes the step
exact, has it; `head_step: exact` (default) is Eq. 5, `paper` is Algorithm 1. The weights α_i are over
all clients (Eq. 4); the text's remark that participants' weights sum to one is not followed.
Reductions: I = r and τ = 1 with SGD is gradient descent on L; ρ = 0 is independent regressions.
"""

import logging
from collections.abc import Sequence

import numpy as np

from fedpers.clients.pflego import PFLEGOConfig, TakeSteps
from fedpers.core.params import sq_norm, weighted_sum
from fedpers.families.split_models.strategy import BodyDescentStrategy, DescendingBody
from fedpers.method import Params, Round

log = logging.getLogger("fedpers")


class PFLEGO(BodyDescentStrategy):
    """Takes one (stochastic) gradient step on the shared body a round."""

    weighs_by_samples = True
    config: PFLEGOConfig
    _warned = False                                                  # of a β that is too large
    not_robust = "its step is an unbiased estimate of the whole gradient, which a robust mean is not"

    def round(self, s: DescendingBody, t: int, rng: np.random.Generator) -> Round:
        """One round of Algorithm 1."""
        selected = self.sample(rng)                                                      # [S1]
        r = len(selected) if self.plan.participation == "range" else self.num_sampled
        order = self._order(s, r)
        g = yield dict.fromkeys(selected, order)                                         # [S2]
        ratio = len(self.roster.ids) / len(g) if self.config.scale == "realised" else order.ratio
        alpha = {i: self.num_examples(i) / order.num_total for i in g}
        G = weighted_sum([g[i].theta for i in g], [ratio * alpha[i] for i in g])         # [S3]
        self.note(gradient_norm=float(sq_norm(G)) ** 0.5 if G else 0.0)
        if self.config.report:
            self._note_losses([g[i].told for i in g], [ratio * alpha[i] for i in g])
        return self.descend(s, G, t, g)                                                  # [S4]

    def _note_losses(self, told: Sequence[Params], weights: Sequence[float]) -> None:
        """(I/r) Σ α_i l_i at θ_{t-1}: an estimate of L (Eq. 1) without bias, L itself if all take part."""
        sums = weighted_sum([{k: t[k].double() for k in ("before", "after")} for t in told], weights)
        L = max(float(t["L"]) for t in told)
        losses = {"training_loss": float(sums["before"]), "training_loss_after": float(sums["after"])}
        self.note(**losses, head_curvature=L)
        if self.config.tau > 1 and self.config.beta * L > 2 and not self._warned:
            self._warned = True
            log.warning("method.beta=%g: above 2/L=%.3g of a head in round %d, so head steps may raise "
                        "its loss; lower method.beta", self.config.beta, 2 / L, self.rounds_done + 1)

    def _order(self, s: DescendingBody, r: int) -> TakeSteps:
        return TakeSteps(s.part, len(self.roster.ids) / r, self.roster.num_total)

    def evaluation_message(self, s: DescendingBody, k: int) -> TakeSteps:
        """The body, and the scale I/r for the client's last step."""
        return self._order(s, self.num_sampled)
