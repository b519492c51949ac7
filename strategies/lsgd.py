"""LSGD-PFL: local SGD on both blocks, averaging the shared one.

Hanzely, Zhao, Kolar, "Personalized Federated Learning: A Unified Framework and Universal
Optimization Techniques", https://arxiv.org/abs/2102.09743, Algorithm 1. Any objective of
families/unified.

    Server                                             Client m
    [S1] send w to all (or to a cohort)        ---->   τ times:
                                                       [C1] draw B samples
                                                       [C2] (g_w, g_β) = 1/B Σ_j ∇ f_{m,j}(w_m, β_m)
                                                       [C3] w_m -= η g_w  and  β_m -= κ η g_β
    [S2] w = 1/M Σ_m w_m                       <----   [C4] send w_m, keep β_m

Deviations from the paper: κ = 1/M (`beta_scale: mean`), for only then do the step-size condition
and the lemmas hold; the literal box is `beta_scale: one`. `w_scale: mean` is what the published
figures on images were made with. A cohort may be drawn (the paper has none): the mean is over it.
Without `eta`, η = min{1/(4 max{L_w, κM L_β}), 1/(8√(3e)(τ-1) L_w)}: Theorem 1 prints L_β alone, where
its proof (Lemma 5) has the larger of both; for B samples L is what one of them makes of it on average.
`output: average` predicts with the average of Theorem 1, Σ_k (1-ημ)^-(k+1) x_k of the virtual iterates
x_k = (1/M Σ_m w_m, β_1..β_M), instead of the last one; it needs every client in every round.
Reductions: objective fl is local SGD (FedAvg with equal weights), with τ = 1 minibatch SGD; full is
independent clients; ws2 has FedPer's and FedRep's objective. By their own names, with a step that is
given and `beta_scale: one` as published: APFL (method=apfl, objective apfl2) and federated residual
learning (method=fedres, objective fr).
"""

import numpy as np

from fedpers.clients.lsgd import LSGDConfig
from fedpers.core.errors import ConfigError
from fedpers.core.params import Params
from fedpers.families.unified.messages import Block, Counts, LocalSteps
from fedpers.families.unified.objective import Constants
from fedpers.families.unified.step_sizes import LSGDRates, lsgd_step
from fedpers.families.unified.strategy import BlockStrategy, State, Steps


class LSGD(BlockStrategy):
    """Averages the clients' copies of the shared block with equal weights."""

    config: LSGDConfig
    not_robust = ""
    takes_all = False

    def at(self, s: State) -> Params:
        """w, or its average."""
        return s.w.z or s.w.y

    def rates(self, c: Constants, n: float) -> LSGDRates:
        """The step size of the convex theory, or the one that is set."""
        h = self.config
        scale = 1.0 if h.beta_scale == "mean" else float(self.M)
        step = lsgd_step(c, h.tau, beta_scale=scale, batch_size=h.batch_size) if h.eta is None else h.eta
        return LSGDRates(step, c.mu)

    def own_rates(self) -> LSGDRates | None:
        """The configured step size, where nothing depends on μ."""
        h = self.config
        needs_mu = h.decreasing or h.output == "average"
        return None if h.eta is None or needs_mu else LSGDRates(h.eta, None)

    def iterate(self, s: State, rng: np.random.Generator) -> Steps:
        """τ local steps of every client, then the mean."""
        h = self.config
        k = s.counts.iterations
        etas = s.rates.steps(k, h.tau, h.decreasing)
        shares = self._shares(s.rates, k) if h.output == "average" else ()
        order = LocalSteps(s.w.y, etas, self.M, self.at(s) if shares else {}, shares)
        replies = yield self.to(self.sample(rng), order)                                 # [S1]
        w = self.average([r.w for r in replies.values()], start=s.w.y)                   # [S2]
        mean = self.average([r.mean for r in replies.values()], start=order.mean) if shares else {}
        return State(Block(w, mean), s.constants, s.rates, s.counts.plus(self._cost()))

    def _shares(self, rates: LSGDRates, k: int) -> tuple[float, ...]:
        if self.num_sampled < self.M:
            raise ConfigError(
                "output=average: needs every client in every round, and "
                f"clients_per_round={self.num_sampled} of {self.M}; leave it out, or set output=last"
            )
        return rates.shares(k, self.config.tau)

    def _cost(self) -> Counts:
        h, f = self.config, self.objective
        whole = 0 if h.batch_size else h.tau
        samples = h.tau * (h.batch_size or round(self.mean_samples))
        return Counts(h.tau, int(f.has_w), whole, whole, samples if f.w_uses_data else 0, samples)
