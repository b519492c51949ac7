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

from typing import Any

import numpy as np

from fedpers.clients.fedavg import Weights
from fedpers.core.params import weighted_mean
from fedpers.method import Params, PersonalizedStrategy, Roster, Round, record


@record
class State:
    """The global model."""

    params: Params


class FedAvg(PersonalizedStrategy):
    """Averages whole models, weighted by numbers of samples."""

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> State:
        """One global model."""
        return State(params)

    def round(self, s: State, t: int, rng: np.random.Generator) -> Round:
        """One round of Algorithm 1."""
        selected = self.sample(rng)                                                      # [S1]
        w = yield dict.fromkeys(selected, Weights(s.params))                             # [S2]
        return State(weighted_mean([w[k].params for k in w], [self.num_examples(k) for k in w]))  # [S3]

    def evaluation_message(self, s: State, k: int) -> Weights:
        """Every client predicts with the global model."""
        return Weights(s.params)

    def models(self, s: State) -> dict[str, Any]:
        """The global model."""
        return {"global": s.params}
