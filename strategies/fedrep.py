"""FedRep: many head steps, then a few on the shared representation.

Collins, Hassani, Mokhtari, Shakkottai, "Exploiting Shared Representations for Personalized
Federated Learning", ICML 2021, https://arxiv.org/abs/2102.07078, Algorithm 1.

    Server                                             Client i
    [S1] draw a set of rn clients
    [S2] send the representation φ             ---->   [C1] h_i = τ_h steps on f_i(., φ) from h_i
                                                       [C2] φ_i = τ_φ steps on f_i(h_i, .) from φ
                                                       [C3] keep the head h_i
    [S3] φ = 1/(rn) Σ_i φ_i                    <----   [C4] send φ_i

Deviations from the paper: none; Algorithm 1 has τ_φ = 1, its experiments more. The mean is plain,
as printed; the authors' code weighs by samples.
Reductions: with clients of equal size it is FedAlt with a personal head; without head steps all
heads stay as they were, which is FedBABU.
"""

import numpy as np

from fedpers.clients.fedrep import Body
from fedpers.core.params import mean, split
from fedpers.method import Params, PersonalizedStrategy, Roster, Round, record


@record
class State:
    """The shared representation φ."""

    phi: Params


class FedRep(PersonalizedStrategy):
    """Averages representations; heads stay where they are."""

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> State:
        """The model's initial body."""
        return State(split(params, self.model.is_head)[1])

    def round(self, s: State, t: int, rng: np.random.Generator) -> Round:
        """One round of Algorithm 1."""
        selected = self.sample(rng)                                                      # [S1]
        w = yield dict.fromkeys(selected, Body(s.phi))                                   # [S2]
        return State(mean([reply.phi for reply in w.values()]))                          # [S3]

    def evaluation_message(self, s: State, k: int) -> Body:
        """The representation, for the client's own head."""
        return Body(s.phi)
