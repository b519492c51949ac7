"""FedProx: federated averaging with a proximal term.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, MLSys 2020, https://arxiv.org/abs/1812.06127,
Algorithm 2.

    Server                                             Client k
    [S1] draw K clients, k with prob. p_k
    [S2] send w to each of them                ---->   [C1] h_k(w_k; w) = F_k(w_k) + μ/2 ‖w_k - w‖²
                                                       [C2] w_k ≈ argmin h_k, from w
    [S3] w = 1/K Σ_k w_k                       <----   [C3] send w_k

Deviations from the paper: by default (`sampling: uniform`) clients are drawn alike and weighed by
n_k in [S3], as in FedAvg; `proportional` is Algorithm 2 with p_k = n_k/n, nobody drawn twice.
How inexact [C2] is (γ_k) follows from the local training's steps, the same on every device unless
`systems.partial` gives slow ones fewer.
Reductions: μ = 0 is FedAvg; FedSoft with S = 1 from the center is FedProx with μ = λ.
"""

import numpy as np

from fedpers.clients.fedprox import FedProxConfig, Weights
from fedpers.core.sampling import draw
from fedpers.families.global_model.strategy import GlobalModelStrategy
from fedpers.method import Round


class FedProx(GlobalModelStrategy):
    """Averages models that were trained with a proximal term to the last average."""

    config: FedProxConfig
    not_robust = ""

    @property
    def draws_itself(self) -> str:
        """By numbers of samples, with `sampling=proportional`."""
        return "draws by numbers of samples" if self.config.sampling == "proportional" else ""

    def round(self, s: Weights, t: int, rng: np.random.Generator) -> Round:
        """One round of Algorithm 2."""
        proportional = self.config.sampling == "proportional"
        selected = self._proportional(rng) if proportional else self.sample(rng)         # [S1]
        w = yield dict.fromkeys(selected, s)                                             # [S2]
        weights = [1.0 if proportional else self.num_examples(k) for k in w]
        return Weights(self.average([w[k].params for k in w], weights, s.params))        # [S3]

    def _proportional(self, rng: np.random.Generator) -> list[int]:
        n = self.roster.counts
        return [self.roster.ids[i] for i in draw(rng, n, self.num_sampled, replace=False)]
