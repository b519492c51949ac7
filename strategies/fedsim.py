"""FedSim: partial personalisation with simultaneous updates.

Pillutla, Malik, Mohamed, Rabbat, Sanjabi, Xiao, "Federated Learning with Partial Model
Personalization", ICML 2022, https://arxiv.org/abs/2204.03809, Algorithm 3 (LocalSim in FedSim).

    min_{u, v_1..v_n} Σ_i α_i F_i(u, v_i)

    Server                                             Client i
    [S1] draw a set of m clients
    [S2] send the shared part u                ---->   [C1] τ joint steps on F_i from (u, v_i):
                                                            u -= γ_u ∇_u F_i, v_i -= γ_v ∇_v F_i
                                                       [C2] keep v_i
    [S3] u = Σ_i α_i u_i / Σ_i α_i             <----   [C3] send u_i

Deviations from the paper: α_i = n_i (the paper's weights are free); the personal part is the last
layer or everything else, adapters are left out.
Reductions, for γ_v = γ_u: personal=head is FedPer, personal=body is LG-FedAvg.
"""

import numpy as np

from fedpers.clients.fedsim import FedSimConfig, Shared
from fedpers.core.params import split, weighted_mean
from fedpers.method import Params, PersonalizedStrategy, Roster, Round, record


@record
class State:
    """The shared part u."""

    u: Params


class FedSim(PersonalizedStrategy):
    """Averages the shared part, weighted by numbers of samples."""

    config: FedSimConfig

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> State:
        """The shared part of the initial model."""
        head, body = split(params, self.model.is_head)
        return State(body if self.config.personal == "head" else head)

    def round(self, s: State, t: int, rng: np.random.Generator) -> Round:
        """One round of Algorithm 3."""
        selected = self.sample(rng)                                                      # [S1]
        w = yield dict.fromkeys(selected, Shared(s.u))                                   # [S2]
        n = [self.num_examples(k) for k in w]
        return State(weighted_mean([w[k].u for k in w], n))                              # [S3]

    def evaluation_message(self, s: State, k: int) -> Shared:
        """The shared part, for the client's own one."""
        return Shared(s.u)
