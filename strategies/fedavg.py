"""FedAvg: federated averaging, with optional local fine-tuning (FedAvg+).

McMahan, Moore, Ramage, Hampson, Agüera y Arcas, AISTATS 2017, https://arxiv.org/abs/1602.05629,
Algorithm 1.

    Server                                             Client k
    [S1] draw a set of r clients
    [S2] send w to each of them                ---->   [C1] w_k = local SGD on f_k from w
    [S3] w = Σ_k n_k w_k / Σ_k n_k             <----   [C2] send w_k

Deviations from the paper: none; the server draws r clients rather than a fraction.
Reductions: one client is centralised SGD; one full-batch local step is FedSGD.
"""

import numpy as np

from fedpers.clients.fedavg import Weights
from fedpers.families.global_model.strategy import GlobalModelStrategy
from fedpers.method import Round


class FedAvg(GlobalModelStrategy):
    """Averages whole models, weighted by numbers of samples."""

    not_robust = ""
    weighs_by_samples = True

    def round(self, s: Weights, t: int, rng: np.random.Generator) -> Round:
        """One round of Algorithm 1."""
        selected = self.sample(rng)                                                      # [S1]
        w = yield dict.fromkeys(selected, s)                                             # [S2]
        n = [self.num_examples(k) for k in w]
        return Weights(self.average([w[k].params for k in w], n, s.params))              # [S3]
