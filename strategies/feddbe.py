"""FedDBE: FedAvg of features without the clients' bias, which each client keeps in a memory of its own.

Zhang, Hua, Cao, Wang, Song, Xue, Ma, Guan, "Eliminating Domain Bias for Federated Learning in
Representation Space", NeurIPS 2023, https://arxiv.org/abs/2311.14975: FedAvg+DBE.

    body f, head g, z = f(x); z̄_i^p: client i's bias memory, at first 0; M features

    Server                                             Client i
    once, before round 1:
    [S1] send f, g to all clients              ---->   [C1] local SGD on the loss, as in FedAvg
    [S2] z̄^g = Σ_i n_i z̄_i^g / Σ_i n_i         <----   [C2] send z̄_i^g, the mean of z; keep nothing
    in every round:
    [S3] draw a set of r clients
    [S4] send f, g, z̄^g                        ---->   of each batch, from z̄_i^g = 0:
                                                       [C3] z̄_i^g = (1 - μ) z̄_i^g + μ mean of z
                                                       [C4] F = ℓ(g(z + z̄_i^p), y)
                                                            + κ/2 ‖z̄_i^g - z̄^g‖² / M
                                                       [C5] SGD step on F in f, g and z̄_i^p
    [S5] f, g = Σ_i n_i (f_i, g_i) / Σ_i n_i   <----   [C6] send f_i, g_i; keep z̄_i^p

Client i predicts with g(z + z̄_i^p).

Deviations from the paper: the z̄_i^g of [C2] is the mean over all samples under the model after [C1],
where the authors' code has the running mean of [C3], which for μ = 1 is that of the last batch.
The gradient of the regularisation passes through the newest batch alone, as in the authors' code.
Reductions: κ = 0 with memories that stay 0 is FedAvg.
"""

from typing import Any

import numpy as np

from fedpers.clients.feddbe import FedDBEConfig, ModelAndMean, Weights
from fedpers.core.errors import ConfigError
from fedpers.families.global_model.features import MeanWanted
from fedpers.learning.classes import check_features
from fedpers.method import Params, PersonalizedStrategy, Roster, Round


class FedDBE(PersonalizedStrategy):
    """Averages models, weighted by numbers of samples, and once the means of their features."""

    config: FedDBEConfig
    not_robust = ""

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> ModelAndMean:
        """The model's initial parameters; the features' mean is not known yet.

        Raises:
            ConfigError: the model's head has no bias, through which a memory acts on a whole model, or the
                model has features of each token.
        """
        check_features(self.model, "feddbe has a mean of samples' features")
        if not self.model.bias:
            raise ConfigError("method feddbe folds a client's memory into the bias of the head, which "
                              "model.bias=false leaves out; set it true")
        return ModelAndMean(params, next(iter(params.values())).new_zeros(self.model.num_features))

    def round(self, s: ModelAndMean, t: int, rng: np.random.Generator) -> Round:
        """One round; the first begins by asking all clients for the means of their features."""
        if t == 1:
            question = MeanWanted(s.params, self.model.num_features)
            told = yield dict.fromkeys(self.roster.ids, question)                        # [S1]
            z = self._mean({k: {"z": reply.z} for k, reply in told.items()})["z"]        # [S2]
            s = ModelAndMean(s.params, z)
        selected = self.sample(rng)                                                      # [S3]
        sent = yield dict.fromkeys(selected, s)                                          # [S4]
        if not sent:                               # nobody was drawn, after the question
            return s
        models = {k: reply.params for k, reply in sent.items()}
        return ModelAndMean(self._mean(models, s.params), s.z)                           # [S5]

    def _mean(self, items: dict[int, Params], start: Params | None = None) -> Params:
        n = [self.num_examples(k) for k in items]
        return self.average(list(items.values()), n, start)

    def evaluation_message(self, s: ModelAndMean, k: int) -> Weights:
        """The global model, for the client's own memory."""
        return Weights(s.params)

    def models(self, s: ModelAndMean) -> dict[str, Params]:
        """The global model, for those who have no memory."""
        return {"global": s.params}

    def explain(self, s: ModelAndMean) -> dict[str, Any]:
        """The target mean of the features."""
        return {"global_mean": s.z.cpu().numpy()}
