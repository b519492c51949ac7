"""MOON: federated averaging whose clients keep their features near those of the global model.

Li, He, Song, "Model-Contrastive Federated Learning", CVPR 2021, https://arxiv.org/abs/2103.16257,
Algorithm 1.

    z, z_glob, z_prev: features of x under the model in training, the received and the last local one

    Server                                             Client i
    [S1] draw a set of r clients
    [S2] send w to each of them                ---->   [C1] ℓ_sup: the model's own loss
                                                       [C2] ℓ_con = -log(e^{sim(z, z_glob)/τ} /
                                                            (e^{sim(z, z_glob)/τ} + e^{sim(z, z_prev)/τ}))
                                                       [C3] w_i = local SGD on ℓ_sup + μ ℓ_con from w
    [S3] w = Σ_i n_i w_i / Σ_i n_i             <----   [C4] send w_i, keep it for z_prev

sim is the cosine. Before its first training z_prev is that of the initial model.

Deviations from the paper: z are the features that the head reads; the paper adds a projection of two
layers to its networks and contrasts what comes out of that.
Reductions: μ = 0 is FedAvg bit for bit; so is any μ where the model has no body.
"""

import numpy as np

from fedpers.clients.moon import MoonConfig, Weights
from fedpers.families.global_model.strategy import GlobalModelStrategy
from fedpers.learning.classes import check_features
from fedpers.method import Params, Roster, Round


class Moon(GlobalModelStrategy):
    """Averages whole models, weighted by numbers of samples."""

    config: MoonConfig
    not_robust = ""

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> Weights:
        """The model's initial parameters.

        Raises:
            ConfigError: the model has features of each token.
        """
        check_features(self.model, "moon compares features of samples")
        return Weights(params)

    def round(self, s: Weights, t: int, rng: np.random.Generator) -> Round:
        """One round of Algorithm 1."""
        selected = self.sample(rng)                                                      # [S1]
        w = yield dict.fromkeys(selected, s)                                             # [S2]
        n = [self.num_examples(i) for i in w]
        return Weights(self.average([w[i].params for i in w], n, s.params))              # [S3]
