"""FedRecon: heads are reconstructed on the client, the body follows under the reconstructed head.

Singhal, Sidahmed, Garrett, Wu, Rush, Prakash, "Federated Reconstruction: Partially Local Federated
Learning", NeurIPS 2021, https://arxiv.org/abs/2102.03448, Algorithm 1.

    Server                                             Client i
    [S1] draw a set of r clients
    [S2] send the global part g                ---->   [C1] l_i = the initial head, or the kept one
                                                       [C2] k_r gradient steps on l_i, g fixed
                                                       [C3] g_i = k_u steps from g, l_i fixed
    [S3] Δ = Σ_i n_i Δ_i / Σ_i n_i             <----   [C4] send Δ_i = g - g_i
    [S4] g -= η_s Δ, or a step of Adam on Δ            to be evaluated with the initial head:
                                                       [C5] k_r steps on l_i, as above

The gradient of g is taken at the head after its steps (block coordinates), never jointly: that is
what PFLEGO changes.

Deviations from the paper: reconstruction and update use the same samples (the paper allows it, and
prefers two halves); `start: kept` makes clients stateful, as papers that compare with it do.
Reductions: start=kept with η_s = 1 and SGD is FedAlt with a personal head.
"""

import numpy as np

from fedpers.clients.fedrecon import FedReconConfig, Shared
from fedpers.core.params import split, weighted_mean
from fedpers.learning.optimizers import LocalConfig, OptimizerState, init_optimizer, sgd_step
from fedpers.method import Params, PersonalizedStrategy, Roster, Round, record


@record
class State:
    """The body, and the server optimiser's state."""

    g: Params
    opt: OptimizerState


class FedRecon(PersonalizedStrategy):
    """Takes the mean update of the body as a gradient."""

    config: FedReconConfig

    def init(self, roster: Roster, params: Params, rng: np.random.Generator) -> State:
        """The model's initial body."""
        g = split(params, self.model.is_head)[1]
        return State(g, init_optimizer(g, self._optimizer))

    def round(self, s: State, t: int, rng: np.random.Generator) -> Round:
        """One round of Algorithm 1."""
        selected = self.sample(rng)                                                      # [S1]
        w = yield dict.fromkeys(selected, Shared(s.g))                                   # [S2]
        n = [self.num_examples(k) for k in w]
        delta = weighted_mean([reply.g for reply in w.values()], n)                      # [S3]
        return State(*sgd_step(s.g, delta, s.opt, self._optimizer, self.config.rho))     # [S4]

    def evaluation_message(self, s: State, k: int) -> Shared:
        """The body, for a head that the client reconstructs or has."""
        return Shared(s.g)

    @property
    def _optimizer(self) -> LocalConfig:
        return LocalConfig(lr=self.config.rho, optimizer=self.config.server_optimizer)
