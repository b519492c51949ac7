"""Ditto: a global model by FedAvg, and for each client a personal model kept near it.

Li, Hu, Beirami, Smith, "Ditto: Fair and Robust Federated Learning Through Personalization",
ICML 2021, https://arxiv.org/abs/2012.04221, Algorithm 1.

    h_k(v; w) = F_k(v) + λ/2 ‖v - w‖²

    Server                                             Client k
    [S1] draw a set of r clients
    [S2] send w to each of them                ---->   [C1] v_k = local SGD on h_k from its own v_k
                                                       [C2] keep v_k
                                                       [C3] w_k = local SGD on F_k from w
    [S3] w += Σ_k p_k (w_k - w)                <----   [C4] send w_k

The personal model v_k is what client k predicts with.

Deviations from the paper: p_k = n_k / Σ_j n_j over those that replied (the paper leaves it open and
prints a plain mean); the personal model is trained before the global one (neither sees what the
other does); both by the same `local` settings.
Reductions: λ = 0 is local training; w is FedAvg's, whatever λ.
"""

import numpy as np

from fedpers.clients.ditto import Weights
from fedpers.families.global_model.strategy import GlobalModelStrategy
from fedpers.method import Round


class Ditto(GlobalModelStrategy):
    """FedAvg; personalisation happens on the clients."""

    not_robust = ""
    weighs_by_samples = True

    def round(self, s: Weights, t: int, rng: np.random.Generator) -> Round:
        """One round of Algorithm 1."""
        selected = self.sample(rng)                                                      # [S1]
        w = yield dict.fromkeys(selected, s)                                             # [S2]
        p = [self.num_examples(k) for k in w]
        return Weights(self.average([w[k].params for k in w], p, s.params))              # [S3]

    def evaluation_message(self, s: Weights, k: int) -> None:
        """Clients predict with their personal models."""
        return
