"""FedPer: shared base layers, private head.

Arivazhagan, Aggarwal, Singh, Choudhary, 2019, https://arxiv.org/abs/1912.00818, Algorithms 1 and 2.

    Server                                             Client k
    [S1] draw a set of r clients
    [S2] send the base layers θ                ---->   [C1] (θ_k, W_k) = local SGD on f_k from (θ, W_k)
                                                       [C2] keep the head W_k
    [S3] θ = Σ_k n_k θ_k / Σ_k n_k             <----   [C3] send θ_k

Deviations from the paper: clients are sampled; the personal part is the last layer.
Reductions: without a personal part it is FedAvg.
"""

import numpy as np

from fedpers.clients.fedper import Body
from fedpers.core.params import split, weighted_mean
from fedpers.method import Params, PersonalizedStrategy, Roster, Round, record


@record
class State:
    """The shared body."""

    theta: Params


class FedPer(PersonalizedStrategy):
    """Averages bodies, weighted by numbers of samples; heads stay where they are."""

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> State:
        """The model's initial body."""
        return State(split(params, self.model.is_head)[1])

    def round(self, s: State, t: int, rng: np.random.Generator) -> Round:
        """One round."""
        selected = self.sample(rng)                                                      # [S1]
        w = yield dict.fromkeys(selected, Body(s.theta))                                 # [S2]
        return State(weighted_mean([w[k].theta for k in w], [self.num_examples(k) for k in w]))  # [S3]

    def evaluation_message(self, s: State, k: int) -> Body:
        """The body, for the client's own head."""
        return Body(s.theta)
