"""FedAlt: partial personalisation with alternating updates.

Pillutla, Malik, Mohamed, Rabbat, Sanjabi, Xiao, "Federated Learning with Partial Model
Personalization", ICML 2022, https://arxiv.org/abs/2204.03809, Algorithm 2 (LocalAlt in FedAlt).

    min_{u, v_1..v_n} Σ_i α_i F_i(u, v_i)

    Server                                             Client i
    [S1] draw a set of m clients
    [S2] send the shared part u                ---->   [C1] v_i = τ_v steps on F_i(u, .) from v_i
                                                       [C2] u_i = τ_u steps on F_i(., v_i) from u
                                                       [C3] keep v_i
    [S3] u = Σ_i α_i u_i / Σ_i α_i             <----   [C4] send u_i

Deviations from the paper: α_i = n_i (the paper's weights are free); the personal part is the last
layer or everything else, adapters are left out.
Reductions: personal=head with clients of equal size is FedRep. No v steps: only u is trained.
"""

import numpy as np

from fedpers.clients.fedalt import FedAltConfig, Shared
from fedpers.core.params import split, weighted_mean
from fedpers.method import Params, PersonalizedStrategy, Roster, Round, record


@record
class State:
    """The shared part u."""

    u: Params


class FedAlt(PersonalizedStrategy):
    """Averages the shared part, weighted by numbers of samples."""

    config: FedAltConfig

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> State:
        """The shared part of the initial model."""
        head, body = split(params, self.model.is_head)
        return State(body if self.config.personal == "head" else head)

    def round(self, s: State, t: int, rng: np.random.Generator) -> Round:
        """One round of Algorithm 2."""
        selected = self.sample(rng)                                                      # [S1]
        w = yield dict.fromkeys(selected, Shared(s.u))                                   # [S2]
        n = [self.num_examples(k) for k in w]
        return State(weighted_mean([w[k].u for k in w], n))                              # [S3]

    def evaluation_message(self, s: State, k: int) -> Shared:
        """The shared part, for the client's own one."""
        return Shared(s.u)
