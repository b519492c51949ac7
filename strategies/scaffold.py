"""SCAFFOLD: federated averaging whose local steps are corrected for the clients' drift.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning", ICML 2020, https://arxiv.org/abs/1910.06378, Algorithm 1, option II.

    Server                                             Client i
    [S1] draw a set S of clients
    [S2] send x, c to each of them             ---->   [C1] K times, from y = x:
                                                            y -= η_l (g_i(y) - c_i + c)
                                                       [C2] c_i⁺ = c_i - c + (x - y) / (K η_l)
    [S3] x += η_g / |S| Σ_i Δy_i               <----   [C3] send Δy_i = y - x, Δc_i = c_i⁺ - c_i;
    [S4] c += 1/N Σ_i Δc_i                                  keep c_i = c_i⁺

N counts all clients. All control variates start at 0, and so does c, which stays their mean.

Deviations from the paper: none. The mean of [S3] is plain, as printed, whatever the clients' sizes.
Reductions: with clients of equal size, one full-batch step and everybody in each round it is FedAvg.
"""

import numpy as np

from fedpers.clients.scaffold import ModelAndControl, ScaffoldConfig
from fedpers.core.params import weighted_sum, zeros_like
from fedpers.method import Params, PersonalizedStrategy, Roster, Round


class Scaffold(PersonalizedStrategy):
    """Averages corrected updates, and the corrections."""

    config: ScaffoldConfig
    not_robust = "its correction must stay the mean of the clients' own ones"

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> ModelAndControl:
        """The model's initial parameters, and no correction yet."""
        return ModelAndControl(params, zeros_like(params))

    def round(self, s: ModelAndControl, t: int, rng: np.random.Generator) -> Round:
        """One round of Algorithm 1."""
        selected = self.sample(rng)                                                      # [S1]
        replies = yield dict.fromkeys(selected, s)                                       # [S2]
        S, N = len(replies), len(self.roster.ids)
        dx, dc = [r.x for r in replies.values()], [r.c for r in replies.values()]
        x = weighted_sum([s.x, *dx], [1.0] + [self.config.eta_g / S] * S)                # [S3]
        c = weighted_sum([s.c, *dc], [1.0] + [1 / N] * S)                                # [S4]
        return ModelAndControl(x, c)

    def evaluation_message(self, s: ModelAndControl, k: int) -> ModelAndControl:
        """The global model."""
        return s

    def models(self, s: ModelAndControl) -> dict[str, Params]:
        """The global model."""
        return {"global": s.x}
