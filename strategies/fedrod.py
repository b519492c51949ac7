"""FedRoD: one model that serves all classes alike, and a personal head for what a client has most.

Chen, Chao, "On Bridging Generic and Personalized Federated Learning for Image Classification",
ICLR 2022, https://arxiv.org/abs/2107.00778, Algorithm 1 (linear personal heads).

    body θ, generic head φ, personal head ψ_m; z = f(x; θ), g = φ(z), n_c samples of class c

    Server                                             Client m
    [S1] draw a set of r clients
    [S2] send θ, φ to each of them             ---->   [C1] ℓ_BR = -log(n_y e^{g_y} / Σ_c n_c e^{g_c})
                                                       [C2] ℓ_ER = cross entropy of g + ψ_m(z),
                                                            θ and φ held fixed
                                                       [C3] local SGD: θ, φ on ℓ_BR, ψ_m on ℓ_ER
                                                       [C4] keep ψ_m
    [S3] (θ, φ) = Σ_m n_m (θ_m, φ_m) / Σ_m n_m <----   [C5] send θ_m, φ_m

Client m predicts with g + ψ_m(z); the model for new clients is (θ, φ).

Deviations from the paper: ψ_m starts at 0, where the paper is silent. Of its two kinds of personal
heads this is the linear one; the other is made by a hypernetwork.
Reductions: for clients whose classes are balanced, (θ, φ) is FedAvg's.
"""

import numpy as np

from fedpers.clients.fedrod import FedRoDConfig
from fedpers.families.global_model.client import Weights
from fedpers.families.global_model.strategy import GlobalModelStrategy
from fedpers.learning.classes import check_classes
from fedpers.method import Params, Roster, Round


class FedRoD(GlobalModelStrategy):
    """Averages generic models, weighted by numbers of samples."""

    config: FedRoDConfig
    not_robust = ""

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> Weights:
        """The model's initial parameters.

        Raises:
            ConfigError: the data have no classes.
        """
        check_classes(self.model, "fedrod balances classes", ["classification"])
        return Weights(params)

    def round(self, s: Weights, t: int, rng: np.random.Generator) -> Round:
        """One round of Algorithm 1."""
        selected = self.sample(rng)                                                      # [S1]
        w = yield dict.fromkeys(selected, s)                                             # [S2]
        n = [self.num_examples(m) for m in w]
        return Weights(self.average([w[m].params for m in w], n, s.params))              # [S3]
