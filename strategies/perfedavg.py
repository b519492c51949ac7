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

from typing import Any

import numpy as np

from fedpers.clients.perfedavg import Weights
from fedpers.core.params import mean
from fedpers.method import Params, PersonalizedStrategy, Roster, Round, record


@record
class State:
    """The global model."""

    params: Params


class PerFedAvg(PersonalizedStrategy):
    """Averages models that were trained to be good after one step."""

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> State:
        """One global model."""
        return State(params)

    def round(self, s: State, t: int, rng: np.random.Generator) -> Round:
        """One round of Algorithm 1."""
        selected = self.sample(rng)                                                      # [S1]
        w = yield dict.fromkeys(selected, Weights(s.params))                             # [S2]
        return State(mean([w[k].params for k in w]))                                     # [S3]

    def evaluation_message(self, s: State, k: int) -> Weights:
        """Every client starts its adaptation from the global model."""
        return Weights(s.params)

    def models(self, s: State) -> dict[str, Any]:
        """The global model; adapt it before use."""
        return {"global": s.params}
