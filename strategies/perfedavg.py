"""Per-FedAvg: personalised federated learning with model-agnostic meta-learning, first order.

Fallah, Mokhtari, Ozdaglar, NeurIPS 2020, https://arxiv.org/abs/2002.07948, Algorithm 1 with the
first-order approximation of Section 5.

    F(w) = 1/N Σ_k f_k(w - α ∇f_k(w))

    Server                                             Client k
    [S1] draw a set of r clients
    [S2] send w to each of them                ---->   at each local step:
                                                       [C1] two batches D, D'
                                                       [C2] w̃ = w - α ∇f_k(w; D)
                                                       [C3] w = w - β ∇f_k(w̃; D')
    [S3] w = 1/r Σ_k w_k                       <----   [C4] send w

A client predicts after a step of its own: w - α ∇f_k(w), on all its training samples.

Deviations: no Hessian term ((FO) of the paper); D pairs each sample of D' with another one, by a
permutation that is drawn once a round. Reductions: α = 0 is FedAvg with equal weights.
"""

import numpy as np

from fedpers.clients.perfedavg import Weights
from fedpers.families.global_model.strategy import GlobalModelStrategy
from fedpers.method import Round


class PerFedAvg(GlobalModelStrategy):
    """Averages models that were trained for a low loss after one local step."""

    not_robust = ""

    def round(self, s: Weights, t: int, rng: np.random.Generator) -> Round:
        """One round of Algorithm 1."""
        selected = self.sample(rng)                                                      # [S1]
        w = yield dict.fromkeys(selected, s)                                             # [S2]
        return Weights(self.average([w[k].params for k in w], start=s.params))           # [S3]
