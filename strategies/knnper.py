"""kNN-Per: FedAvg, and at prediction the nearest of a client's own samples.

Marfoq, Neglia, Kameni, Vidal, "Personalized Federated Learning through Local Memorization", ICML 2022,
https://arxiv.org/abs/2111.09360.

    z = φ(x): what the global model's head is given; p: the probabilities that it gives

    Server                                             Client m
    [S1] draw a set of r clients
    [S2] send w to each of them                ---->   [C1] w_m = local SGD on f_m from w
    [S3] w = Σ_m n_m w_m / Σ_m n_m             <----   [C2] send w_m
    to predict a sample x:
    [S4] send w                                ---->   [C3] its k nearest (z_i, y_i) among the client's
                                                            own samples, by ‖z - z_i‖
                                                       [C4] p_kNN(y) ∝ Σ_i 1[y_i = y] e^{-‖z - z_i‖/σ}
                                                       [C5] λ_m: the likeliest for the own samples, each
                                                            left out for itself, of 0, 0.1, ... 1
                                                       [C6] predict λ_m p_kNN + (1 - λ_m) p

Deviations from the paper: λ_m is found by leaving out one sample after another, where the paper has
samples for validation. The authors' code has e^{-‖z - z_i‖²/(Mσ)} for M features in [C4].
Reductions: λ = 0 is FedAvg bit for bit; λ = 1 and k = 1 is the nearest neighbour.
"""

import numpy as np

from fedpers.clients.knnper import KNNPerConfig, Weights
from fedpers.families.global_model.strategy import GlobalModelStrategy
from fedpers.learning.classes import check_classes
from fedpers.method import Params, Roster, Round


class KNNPer(GlobalModelStrategy):
    """Averages whole models, weighted by numbers of samples."""

    config: KNNPerConfig
    not_robust = ""
    weighs_by_samples = True

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> Weights:
        """The model's initial parameters.

        Raises:
            ConfigError: the data have no classes.
        """
        check_classes(self.model, "knnper mixes probabilities of classes")
        return Weights(params)

    def round(self, s: Weights, t: int, rng: np.random.Generator) -> Round:
        """One round of FedAvg."""
        selected = self.sample(rng)                                                      # [S1]
        w = yield dict.fromkeys(selected, s)                                             # [S2]
        n = [self.num_examples(m) for m in w]
        return Weights(self.average([w[m].params for m in w], n, s.params))              # [S3]

    def evaluation_message(self, s: Weights, k: int) -> Weights:
        """The global model."""
        return s                                                                         # [S4]
