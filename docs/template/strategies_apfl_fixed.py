"""Template of a method, server half: a fixed mixture of a local and a global model.

Authors, title, venue, link; which algorithm box.

    Server                                             Client k
    [S1] draw a set of r clients
    [S2] send w to each of them                ---->   [C1] w_k = local SGD on f_k from w
                                                       [C2] v_k = local SGD on f_k(α v + (1-α) w)
    [S3] w = Σ_k n_k w_k / Σ_k n_k             <----   [C3] send w_k, keep v_k

Deviations from the paper: list them, numbered, with the reason.
Reductions: α = 1 is local training, α = 0 is FedAvg. Each of them is an exact test.
"""

import numpy as np
from template.clients_apfl_fixed import Global       # in the tree: from fedpers.clients.NAME import

from fedpers.method import Params, PersonalizedStrategy, Roster, Round, weighted_mean


class Template(PersonalizedStrategy):
    """One sentence: what the server does. The state is a record: what the next round needs."""

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> Global:
        """The state before round 1."""
        return Global(params)

    def round(self, s: Global, t: int, rng: np.random.Generator) -> Round:
        """One round; one `yield` is one exchange with clients."""
        selected = self.sample(rng)                                                      # [S1]
        w = yield dict.fromkeys(selected, s)                                             # [S2]
        return Global(weighted_mean([w[k].w for k in w], [self.num_examples(k) for k in w]))  # [S3]

    def evaluation_message(self, s: Global, k: int) -> Global:
        """What client k needs in order to predict."""
        return s
