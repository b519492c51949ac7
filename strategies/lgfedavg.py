"""LG-FedAvg: private representation layers, shared head (FedLG in some papers' tables).

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency, "Think Locally, Act Globally:
Federated Learning with Local and Global Representations", 2020, https://arxiv.org/abs/2001.01523,
Algorithm 1.

    Server                                             Client m
    [S1] draw a set of r clients
    [S2] send the global part g                ---->   [C1] (l_m, g_m) = SGD on f_m from (l_m, g)
                                                       [C2] keep the representation l_m
    [S3] g = Σ_m n_m g_m / Σ_m n_m             <----   [C3] send g_m

Deviations from the paper: the local part is everything but the last layer; local losses on the
representation (self-supervised, adversarial) and the ensemble for new clients are left out; nothing
is pre-trained, while the paper's experiments start from rounds of FedAvg.
Reductions: without a body (logistic regression) it is FedAvg.
"""

import numpy as np

from fedpers.clients.lgfedavg import Head
from fedpers.core.params import split, weighted_mean
from fedpers.method import Params, PersonalizedStrategy, Roster, Round, record


@record
class State:
    """The shared head."""

    g: Params


class LGFedAvg(PersonalizedStrategy):
    """Averages heads, weighted by numbers of samples; bodies stay where they are."""

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> State:
        """The model's initial head."""
        return State(split(params, self.model.is_head)[0])

    def round(self, s: State, t: int, rng: np.random.Generator) -> Round:
        """One round of Algorithm 1."""
        selected = self.sample(rng)                                                      # [S1]
        w = yield dict.fromkeys(selected, Head(s.g))                                     # [S2]
        n = [self.num_examples(k) for k in w]
        return State(weighted_mean([w[k].g for k in w], n))                              # [S3]

    def evaluation_message(self, s: State, k: int) -> Head:
        """The head, for the client's own body."""
        return Head(s.g)
