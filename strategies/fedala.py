"""FedALA: clients mix the global model into their own, entry by entry, before they train.

Zhang, Hua, Wang, Song, Xue, Ma, Guan, "FedALA: Adaptive Local Aggregation for Personalized Federated
Learning", AAAI 2023, https://arxiv.org/abs/2212.01197, Algorithm 1.

    Server                                             Client i
    [S1] draw a set of r clients
    [S2] send Θ to each of them                ---->   [C1] draw a share s of the samples
                                                       [C2] W_i -= η ∇_W f_i(Θ̂_i), clipped to [0, 1]:
                                                            one pass over them; the first time,
                                                            until the loss settles
                                                       [C3] Θ̂_i = Θ_i + (Θ - Θ_i) ⊙ W_i in the p layers
                                                            nearest to the outputs, Θ below
                                                       [C4] Θ_i = local SGD from Θ̂_i
    [S3] Θ = Σ_i n_i Θ_i / Σ_i n_i             <----   [C5] send Θ_i, keep it

All W_i start at 1; a client that was never drawn before takes Θ whole. Client i predicts with Θ_i.

Deviations from the paper: the loss has settled when its last ten values, each over all samples drawn,
have a standard deviation below `threshold`, and after 100 passes at the latest (the paper says "until
converged", its code compares losses of single batches without an end).
Reductions: η = 0 is FedAvg.
"""

import numpy as np

from fedpers.clients.fedala import FedALAConfig, Weights
from fedpers.families.global_model.strategy import GlobalModelStrategy
from fedpers.method import Round


class FedALA(GlobalModelStrategy):
    """Averages whole models, weighted by numbers of samples."""

    config: FedALAConfig
    not_robust = ""

    def round(self, s: Weights, t: int, rng: np.random.Generator) -> Round:
        """One round of Algorithm 1."""
        selected = self.sample(rng)                                                      # [S1]
        theta = yield dict.fromkeys(selected, s)                                         # [S2]
        n = [self.num_examples(i) for i in theta]
        return Weights(self.average([theta[i].params for i in theta], n, s.params))      # [S3]

    def evaluation_message(self, s: Weights, k: int) -> None:
        """Clients predict with their own models."""
        return
